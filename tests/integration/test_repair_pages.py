"""docs/how-to/correct.md and add-a-sink-later.md as a reader follows them, one after the other, in one shell."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from integration.programs import page

from onceonly.dev.services import Services

pytestmark = pytest.mark.integration

CORRECT, ADD = page.blocks("how-to/correct.md"), page.blocks("how-to/add-a-sink-later.md")


@pytest.fixture
def project(tmp_path: Path, services: Services, broker: str, spark_server: str) -> Path:
    """The folder that the page makes, with the services of all tests: the page's command finds them."""
    home = tmp_path / "shop" / ".onceonly"
    home.mkdir(parents=True)
    (home / "services").symlink_to(services.home / "services")
    shutil.copy(services.home / "services.json", home)
    return tmp_path


def test_every_block_does_what_the_pages_show(project: Path) -> None:
    page.check([*CORRECT, *ADD], project)
