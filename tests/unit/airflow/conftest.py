"""Tests without an Airflow: it has no id, and neither have owners that name none."""

import pytest

from onceonly.airflow import installation


@pytest.fixture(autouse=True)
def no_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "of_task", lambda: "")
    monkeypatch.setattr(installation, "of_server", lambda: "")
