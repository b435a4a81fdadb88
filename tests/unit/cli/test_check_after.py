"""`onceonly check` of a pipeline that comes after another one, before that has run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from codes import raises
from unit.chain import Chain

from onceonly.cli import check
from onceonly.errors import InvalidPipeline
from onceonly.settings import Settings


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.delenv("ONCEONLY_STATE", raising=False)
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path / "home"))
    return Settings.from_env()


def test_a_state_table_that_is_not_made_yet_knows_no_pipeline(tmp_path: Path, settings: Settings) -> None:
    chain, parts = Chain(tmp_path), Any
    with raises(InvalidPipeline, "upstream-missing") as refused:
        check._check_upstream(chain.second, parts, settings)  # type: ignore[arg-type]
    assert "'first'" in refused.value.what
    assert check._check_upstream(chain.first, parts, settings) == []  # type: ignore[arg-type]
    assert not settings.home.exists()
