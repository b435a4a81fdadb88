"""A folder that a Structured Streaming query writes: Spark would not read what is published there."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceonly.storage.interface import UnsuitableTarget
from onceonly.storage.local import LocalFiles


def test_folder_of_a_query_is_refused_until_its_log_is_removed(tmp_path: Path) -> None:
    log = tmp_path / "lake" / "_spark_metadata"
    log.mkdir(parents=True)
    with pytest.raises(UnsuitableTarget) as refused:
        LocalFiles().check(str(tmp_path / "lake"))
    assert "Structured Streaming" in refused.value.why
    log.rmdir()
    LocalFiles().check(str(tmp_path / "lake"))
