"""Tests without an Airflow: it has no id, and neither have owners that name none."""

import pytest

from onceonly.airflow import runs


@pytest.fixture(autouse=True)
def no_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "read_installation", lambda: "")
    monkeypatch.setattr(runs, "read_installation_on_server", lambda: "")
