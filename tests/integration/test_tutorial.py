"""docs/tutorial.md as a reader follows it: every block in order, in one shell, and what each one prints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.programs import page

from onceonly.dev.services import Services

pytestmark = pytest.mark.integration

TUTORIAL = page.blocks("tutorial.md")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """The folder that the tutorial makes, with services that may start slowly: the tutorial's command finds them."""
    services = Services(tmp_path / "payments" / ".onceonly", port=0, spark_port=0)
    try:
        services.up(spark=True)
        yield tmp_path / "payments"
    finally:
        services.down()


def test_it_is_read_whole() -> None:
    assert len(TUTORIAL) > 10 and sum(block.shown is not None for block in TUTORIAL) > 8


def test_what_differs_is_seen() -> None:
    assert page.same(
        "✓ plan  epoch 1  0.3 s\nLook: …\n…\nend", "✓ plan    epoch 1  12.8 s\nLook: here\none\ntwo\nend\n"
    )
    assert not page.same("✓ plan  epoch 1  0.3 s", "✓ plan  epoch 2  0.3 s")
    assert not page.same("one\ntwo", "one\ntwo\nthree")


def test_every_block_does_what_the_page_shows(project: Path, tmp_path: Path) -> None:
    page.check(TUTORIAL, tmp_path)
