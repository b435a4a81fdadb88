"""What unit tests share."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Importing Airflow writes its configuration; not to the home of whoever runs the tests."""
    before = os.environ.get("AIRFLOW_HOME")
    os.environ.setdefault("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
    yield
    if before is None:
        del os.environ["AIRFLOW_HOME"]
