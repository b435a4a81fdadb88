"""What Spark's standalone master says of a driver, and what it says of itself."""

from typing import Any

import pytest

from onceonly.airflow import driver
from onceonly.errors import NotCommitted

STATUS = {"action": "SubmissionStatusResponse", "submissionId": "driver-1"}
RECOVERING = (
    "Exception from the cluster:\nCurrent state is not alive: RECOVERING. Can only request driver status in ALIVE …"
)


def state(monkeypatch: pytest.MonkeyPatch, **said: Any) -> str:
    monkeypatch.setattr(driver, "_ask", lambda *_: {**STATUS, **said})
    return driver.Driver("http://master:6066", "driver-1", "/reports/one").state()


def test_a_master_that_is_recovering_says_nothing_about_the_driver(monkeypatch):
    with pytest.raises(NotCommitted, match="cannot say how driver-1 is"):
        state(monkeypatch, success=False, message=RECOVERING)


def test_a_driver_that_the_master_does_not_know_is_gone(monkeypatch):
    assert state(monkeypatch, success=False, message=None) == "GONE"
    assert state(monkeypatch, success=True, driverState="RUNNING") == "RUNNING"
