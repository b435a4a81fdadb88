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

pytestmark = pytest.mark.integration
WITH_SPARK = [name for name in publishing.ROUTES if name != "files without Spark"]


def published(route: str, folder: Path) -> tuple[Trace, list[dict[str, Any]]]:
    (folder / "volume").mkdir()
    command = [sys.executable, publishing.__file__, route, str(folder / "volume")]
    trace = syncs.trace(command, folder, {"PYTHONPATH": ":".join(filter(None, sys.path))})
    claims = [json.loads(line) for line in trace.output.splitlines() if line.startswith('{"by"')]
    assert [claim["by"] for claim in claims] == ["staged", "published"]
    return trace, claims


def check(trace: Trace, claims: list[dict[str, Any]]) -> None:
    for claim in claims:
        by = claim["by"]
        assert claim["files"] or claim["folders"]
        assert [path for path in claim["files"] if path not in trace.synced(by)] == []
        assert [folder for folder in claim["folders"] if not trace.names_synced(folder, by)] == []


def test_files_are_on_disk_before_they_are_recorded(tmp_path: Path) -> None:
    trace, claims = published("files without Spark", tmp_path)
    check(trace, claims)


@pytest.mark.heavy
@pytest.mark.parametrize("route", WITH_SPARK)
def test_what_spark_wrote_is_on_disk_before_it_is_recorded(route: str, tmp_path: Path) -> None:
    check(*published(route, tmp_path))


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
