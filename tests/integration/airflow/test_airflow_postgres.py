"""A DAG with Airflow's metadata in PostgreSQL, where the system has it (apt-get install postgresql).

ONCEONLY_TEST_POSTGRES=1 runs all of test_airflow.py on it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from integration.airflow.test_airflow import Airflow
from integration.projects.project import make_project, produce
from integration.services.postgres import postgres, programs

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(programs() is None, reason="PostgreSQL is not installed: apt-get install postgresql"),
]


def test_a_run_publishes_and_is_announced(tmp_path: Path, broker: str, spark_server: str) -> None:
    project = make_project(tmp_path, broker, spark_server, "on_postgres")
    produce(project, range(12))
    with postgres() as url, Airflow(tmp_path / "airflow", spark_server, url).initialised() as airflow:
        done = airflow.run(project, "chained")
        assert done["run"] == "success", done["log"][-3000:]
        assert done["events"]["onceonly://lake/chained"]["rows"] == 12
    assert project.published() == Counter(range(12))
