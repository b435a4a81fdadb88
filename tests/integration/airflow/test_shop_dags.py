"""The DAGs of dags/shop.py in a real Airflow, as they are: registered Avro with garbage, and a table behind a table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from integration.projects.shop import ROOT, Shop
from patience import PATIENCE
from schema_registry import FakeRegistry, serving

pytestmark = pytest.mark.integration
NUMBERS = range(300)


def airflow(env: dict[str, str], *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "airflow", *command],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-5000:]}"
    return done.stdout


@pytest.mark.heavy
def test_its_dags_publish_the_truth(tmp_path: Path, broker: str, spark_server: str) -> None:
    with serving(FakeRegistry()) as registry:
        shop = Shop.make(tmp_path / "home", broker, registry, suffix="")
        shop.produce(NUMBERS)
        env = {
            **shop.env,
            "AIRFLOW_HOME": str(tmp_path / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
            "AIRFLOW_CONN_SPARK": json.dumps({"conn_type": "generic", "host": spark_server}),
        }
        airflow(env, "db", "migrate")
        airflow(env, "dags", "reserialize")
        assert {"shop", "revenue"} <= set(airflow(env, "dags", "list").split())
        for dag in ("shop", "revenue"):
            airflow(env, "dags", "test", dag)
        print(shop.check_truth(NUMBERS))
        shop.nothing_is_open()
