"""What is recorded is on disk, by every route that publishes on one: by the system calls of the whole process tree."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from integration.faults import syncs
from integration.faults.syncs import Trace
from integration.programs import publishing

from onceonly.pipeline import registry

pytestmark = pytest.mark.integration


def routes(needs: str) -> list[str]:
    return [name for name, route in publishing.ROUTES.items() if route.needs == needs]


def published(route: str, folder: Path, broker: str = "") -> tuple[Trace, list[dict[str, Any]]]:
    (folder / "volume").mkdir()
    command = [sys.executable, publishing.__file__, route, str(folder / "volume"), broker]
    trace = syncs.trace(command, folder, {"PYTHONPATH": ":".join(filter(None, sys.path))})
    claims = [json.loads(line) for line in trace.output.splitlines() if line.startswith('{"by"')]
    assert [claim["by"] for claim in claims] == ["staged", "published"]
    return trace, claims


def check(trace: Trace, claims: list[dict[str, Any]]) -> None:
    assert any(claim["files"] or claim["folders"] for claim in claims)
    for claim in claims:
        by = claim["by"]
        assert [path for path in claim["files"] if path not in trace.synced(by)] == []
        assert [folder for folder in claim["folders"] if not trace.names_synced(folder, by)] == []


def test_every_kind_of_sink_has_a_route() -> None:
    assert {route.kind for route in publishing.ROUTES.values()} == {*registry.OWN, "state table"}


@pytest.mark.parametrize("route", routes(needs=""))
def test_rows_are_on_disk_before_they_are_recorded(route: str, tmp_path: Path) -> None:
    check(*published(route, tmp_path))


@pytest.mark.heavy
@pytest.mark.parametrize("route", routes(needs="spark"))
def test_what_spark_wrote_is_on_disk_before_it_is_recorded(route: str, tmp_path: Path) -> None:
    check(*published(route, tmp_path))


@pytest.mark.heavy
@pytest.mark.parametrize("route", routes(needs="broker"))
def test_spooled_rows_are_on_disk_before_they_are_recorded(route: str, tmp_path: Path, broker: str) -> None:
    check(*published(route, tmp_path, broker))


def test_files_are_on_disk_before_their_manifest(tmp_path: Path) -> None:
    """The manifest is the evidence, so nothing that it lists may be lost."""
    trace, _ = published("files without Spark", tmp_path)
    lake = tmp_path / "volume" / "lake"
    [manifest], [final] = (lake / "_onceonly").iterdir(), lake.rglob("*.jsonl")
    at = trace.first_named(str(manifest))
    earlier = trace.before(at)
    assert trace.first_named(str(final)) < at
    assert earlier.names_synced(str(final.parent), "then")
    assert any("/.new-" in path for path in earlier.synced("then"))
