"""Tables of a Hive Metastore, which Spark keeps in Derby: found by the conf of the Airflow connection alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from deltalake import DeltaTable
from integration.airflow.test_airflow import Airflow
from integration.programs.children import without_spark
from integration.projects.project import make_project, produce
from integration.services.standalone import ROOT, SHORT
from patience import PATIENCE

from onceonly.checkpoint.model import State
from onceonly.errors import InvalidPipeline
from onceonly.runtime import client_job, live_services
from onceonly.runtime.spark_connection import SparkConnection

pytestmark = pytest.mark.integration
NAME = "spark_catalog.lake.numbers"


@pytest.fixture
def hive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Of a Spark whose catalog is a metastore; one process at a time may use it, as Derby has it."""
    monkeypatch.setenv("ONCEONLY_JARS", os.environ.get("ONCEONLY_JARS", str(ROOT / ".jars")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]))
    return {
        "spark.driver.extraJavaOptions": f"{SHORT} -Dderby.stream.error.file={tmp_path}/derby.log",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={tmp_path}/metastore;create=true",
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
    }


def sql(conf: Mapping[str, str], *statements: str) -> Any:
    line = [sys.executable, "-m", "integration.programs.sql_alone", json.dumps(conf), *statements]
    done = subprocess.run(
        line, env=without_spark(os.environ), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith("ROWS ")]
    assert rows, done.stdout + done.stderr[-3000:]
    return json.loads(rows[-1].removeprefix("ROWS "))


def make(conf: Mapping[str, str]) -> None:
    """One that the metastore places itself, in its warehouse."""
    sql(conf, "CREATE SCHEMA lake", "CREATE TABLE lake.numbers (n BIGINT, part STRING) USING delta")


def test_a_table_of_the_metastore_is_found(tmp_path: Path, hive: dict[str, str]) -> None:
    make(hive)
    found = client_job.find_tables(SparkConnection("spark://not.asked:7077", conf=hive), [NAME])[NAME]
    assert Path(found.path) == tmp_path / "warehouse" / "lake.db" / "numbers"
    assert found.table_id == str(DeltaTable(found.path).metadata().id)


@pytest.mark.heavy
def test_what_is_not_there_is_refused(hive: dict[str, str]) -> None:
    with raises(InvalidPipeline, "table-not-in-catalog", match=r"(?s)'lake.numbers'.*CREATE TABLE"):
        client_job.find_tables(SparkConnection(conf=hive), ["lake.numbers"])


@pytest.mark.heavy
def test_a_run_in_airflow_into_a_table_of_the_metastore(tmp_path: Path, broker: str, hive: dict[str, str]) -> None:
    project = make_project(tmp_path, broker, "", "metastore")
    project.set_table(NAME)
    produce(project, range(8))
    make(hive)
    spark = json.dumps({"conn_type": "spark", "host": "local[1]", "extra": {"conf": hive}})
    with Airflow(tmp_path / "airflow", "").initialised():
        os.environ["AIRFLOW_CONN_SPARK"] = spark
        ran = Airflow(tmp_path / "airflow", "").run(project, "chained")
    assert (ran["run"], ran["tasks"]["stage"], ran["tasks"]["commit"]) == ("success", "success", "success"), ran["log"]
    done = live_services.open_coordinator(project.parts).state_table.view("numbers_chained").checkpoint(1)
    assert done is not None and done.state is State.COMMITTED
    [sink] = done.definition.json["sinks"]
    assert (sink["table"], sink["path"]) == (NAME, str(tmp_path / "warehouse" / "lake.db" / "numbers"))
    assert Counter(DeltaTable(sink["path"]).to_pyarrow_table()["n"].to_pylist()) == Counter(range(8))
    assert sql(hive, "SELECT count(*) FROM lake.numbers") == [[8]]
