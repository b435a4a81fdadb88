"""A probe of a folder leaves nothing there, whenever its process dies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onceonly.storage import write_probe


def test_probe_has_no_name_when_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"rows")
    names: list[list[str]] = []
    write = os.write

    def list_names(descriptor: int, content: bytes) -> int:
        names.append(os.listdir(tmp_path))
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", list_names)
    write_probe.require_writable(str(tmp_path))
    assert names == [["rows.parquet"]]
    assert os.listdir(tmp_path) == ["rows.parquet"]


def test_missing_folder_is_not_made(tmp_path: Path) -> None:
    write_probe.require_writable(str(tmp_path / "lake" / "orders"))
    assert os.listdir(tmp_path) == []


def test_next_probe_of_a_store_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    (tmp_path / write_probe.PROBE).write_bytes(b"of a process that was killed")
    write_probe._probe_store(str(tmp_path))
    assert os.listdir(tmp_path) == []
