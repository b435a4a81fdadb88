"""A whole Airflow for a test's project: what schedules, runs tasks, waits for others and answers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from integration.projects.project import Project
from patience import PATIENCE

from onceonly.dev.demo import standalone
from onceonly.dev.demo.standalone import Standalone, wait_until
from onceonly.dev.services import machine

SOURCES = Path(__file__).parents[3] / "src"


@contextmanager
def running(project: Project, *dags: str) -> Iterator[Standalone]:
    """With those DAGs unpaused in their order: who listens comes first, to miss no event."""
    airflow = Standalone(project.settings, machine.free_port(), spark=project.spark)
    path = {"PYTHONPATH": os.pathsep.join([str(SOURCES), str(project.folder)])}
    try:
        with patch.object(standalone, "START_SECONDS", PATIENCE):
            airflow.start({**project.env(), **path})
        for dag in dags:
            wait_until(lambda dag=dag: airflow.unpause(dag), f"Airflow has parsed DAG {dag}", PATIENCE)  # type: ignore[misc]
        yield airflow
    finally:
        airflow.stop()
