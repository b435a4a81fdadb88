"""docs/how-to/correct.md, add-a-sink-later.md and bring-back.md as a reader follows them, one after the other."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from integration.programs import page

from onceonly.coordinator.reprocess import Reprocess, make_request
from onceonly.dev.services import Services

pytestmark = pytest.mark.integration

PAGES = ("correct", "add-a-sink-later", "bring-back")
BLOCKS = [block for name in PAGES for block in page.blocks(f"how-to/{name}.md")]
FIRST = page.blocks(f"how-to/{PAGES[0]}.md")


@pytest.fixture
def project(tmp_path: Path, services: Services, broker: str, spark_server: str) -> Path:
    """The folder that the page makes, with the services of all tests: the page's command finds them."""
    home = tmp_path / "shop" / ".onceonly"
    home.mkdir(parents=True)
    (home / "services").symlink_to(services.home / "services")
    shutil.copy(services.home / "services.json", home)
    return tmp_path


@pytest.mark.parametrize(
    "blocks",
    [
        pytest.param(FIRST, id="first page"),
        pytest.param(BLOCKS, id="all pages", marks=[pytest.mark.heavy, pytest.mark.timeout(1800)]),
    ],
)
def test_every_block_does_what_the_pages_show(project: Path, blocks: list[page.Block]) -> None:
    page.check([block for block in blocks if not block.commands.startswith("airflow")], project)


def test_a_conf_asks_for_what_the_command_asks_for() -> None:
    """A backfill itself is run by the tests of Airflow."""
    texts = [block.commands for block in BLOCKS]
    confs = [json.loads(conf) for text in texts for conf in re.findall(r"--dag-run-conf '(.*?)'", text)]
    commands = [line for text in texts for line in text.splitlines() if "onceonly run" in line and "--reason" in line]
    by_conf = {_request("replaced" if conf.pop("reprocess", False) else None, conf) for conf in confs}
    by_command = {_request_of_command(command) for command in commands if "--epoch" not in command}
    assert by_conf == by_command
    assert len(by_conf) == 3


def _request_of_command(line: str) -> Reprocess | None:
    words = shlex.split(line)
    pairs = list(itertools.pairwise(words))
    wish: dict[str, Any] = {key: [value for option, value in pairs if option == f"--{key}"] for key in _SINKS}
    wish["reason"] = next(value for option, value in pairs if option == "--reason")
    return _request("replaced" if "--reprocess" in words else None, wish)


_SINKS = ("keep", "again", "only")


def _request(replacing: str | None, wish: dict[str, Any]) -> Reprocess | None:
    return make_request(replacing, "ann", wish, "ann")
