"""What `onceonly check` says of the installed Airflow."""

from __future__ import annotations

import pytest

from onceonly.cli import check


@pytest.mark.parametrize(("installed", "count"), [("3.1.8", 2), ("3.2.2", 1), ("3.3.2", 0), ("3.10.0", 0)])
def test_an_older_airflow_has_limits(monkeypatch: pytest.MonkeyPatch, installed: str, count: int) -> None:
    monkeypatch.setattr(check.metadata, "version", lambda name: installed)
    limits = check._list_airflow_limits()
    assert len(limits) == count
    assert all(limit.startswith(f"with Airflow {installed}, ") for limit in limits)


def test_no_airflow_has_no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise check.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(check.metadata, "version", missing)
    assert check._list_airflow_limits() == []
