"""What unit tests share."""

import os
from collections.abc import Iterator

import pytest

from onceonly import settings


@pytest.fixture(scope="session", autouse=True)
def quick_disk() -> Iterator[None]:
    """`make unit` waits for no disk: what a power failure leaves is shown by what was synced, not by syncing it."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("ONCEONLY_UNIT") == "quick":
            patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True)
def no_jars_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where no variable names jars, there are none: neither those of this checkout nor of whoever runs the tests."""
    cache = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setattr(settings, "find_checkout", lambda: None)
    monkeypatch.setattr(settings, "find_cache", lambda: cache)


@pytest.fixture(scope="module")
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Importing Airflow writes its configuration; not to the home of whoever runs the tests."""
    before = os.environ.get("AIRFLOW_HOME")
    os.environ.setdefault("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
    yield
    if before is None:
        del os.environ["AIRFLOW_HOME"]
