"""State table, table, spool, application state and Data Docs on a real S3 server; each process has its own Spark."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest
from deltalake import DeltaTable
from integration import spark_on_s3
from integration.kafka_reader import committed, new_topic
from integration.project import Project, make_project, output, produce
from integration.s3 import BINARY, MISSING, S3
from patience import PATIENCE

from onceonly.airflow.ui.data_docs import served
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable

pytestmark = [
    pytest.mark.integration,
    pytest.mark.heavy,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(BINARY is None, reason=MISSING),
    pytest.mark.skipif(not spark_on_s3.FETCHED, reason=spark_on_s3.UNFETCHED),
]
KILLED = -9
POINTS = [
    *("after claimed row", "after stage of DeltaWriter", "after stage of KafkaWriter", "after stage of StateWriter"),
    *("after staged row", "before commit of DeltaWriter", "after commit of KafkaWriter", "after commit of StateWriter"),
    *("before delete", "after committed row"),
]
NOT_NULL = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "n"}}
TRANSFORM = """
from pyspark.sql import functions as F


def parted(batch, state):
    numbers = batch.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS n", "CAST(partition AS STRING) AS part")
    new = numbers.groupBy("part").agg(F.count("*").alias("new"))
    totals = new.join(state, "part", "left").selectExpr("part", "new + COALESCE(seen, 0) AS seen")
    return {"numbers": numbers, "copy": batch.select("key", "value", "timestamp", "partition")}, totals
"""


@pytest.fixture
def root(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """By the keys of a profile: delta-rs, pyarrow and Spark each find them."""
    root = f"s3://{spark_on_s3.bucket(s3)}/lake"
    places = {f"ONCEONLY_{name.upper()}": f"{root}/{name}" for name in ("state", "spool", "docs")}
    places |= {"ONCEONLY_JARS": str(Settings.from_env().jars)}  # of this checkout, for a project elsewhere
    reached = dict(s3.environment)
    keys = {name.lower(): reached.pop(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    profile = tmp_path / "credentials"
    profile.write_text("\n".join(["[tests]", *(f"{name} = {value}" for name, value in keys.items())]))
    reached |= {
        "AWS_PROFILE": "tests",
        "AWS_SHARED_CREDENTIALS_FILE": str(profile),
        "AWS_FORCE_CREDENTIAL_LOAD": "true",
    }
    for name in keys:
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in (reached | places).items():
        monkeypatch.setenv(name, value)
    return root


@pytest.fixture
def project(root: str, tmp_path: Path, broker: str) -> Project:
    (tmp_path / "of_s3.py").write_text(TRANSFORM)
    (tmp_path / "numbers.expectations.json").write_text(json.dumps({"name": "numbers", "expectations": [NOT_NULL]}))
    made = make_project(tmp_path, broker, "", f"all_on_s3_{os.urandom(4).hex()}")
    StateTable.make(f"{root}/state")
    return made


def test_all_of_it_is_on_s3_and_arrives_once_wherever_it_dies(project: Project, root: str, broker: str) -> None:
    numbers, out = range(10 * (len(POINTS) + 2)), new_topic(broker)
    produce(project, numbers)
    for point in [*POINTS, "-"]:
        child = project.child("mortal_on_s3.py", point, out, root)
        printed = output(child, 3 * PATIENCE)
        assert child.returncode == (0 if point == "-" else KILLED), f"{point}: {printed}"
    assert sorted(DeltaTable(f"{root}/numbers").to_pyarrow_table()["n"].to_pylist()) == list(numbers)
    assert Counter(int(record.value or b"") for record in committed(broker, out)) == Counter(numbers)
    view = StateTable(f"{root}/state").view("all_on_s3")
    latest = view.latest
    assert latest is not None and view.open == []
    assert totals(root, latest.handles["totals"]["runs"]) == Counter(str(number % 4) for number in numbers)
    assert below(f"{root}/spool") == [], "no spool is left"
    page = served(latest.verdict, "all_on_s3", latest.epoch, latest.attempt, "numbers.html")
    assert b"numbers" in bytes(page.body)
    on_disk = StateTable(str(project.folder / "home" / "state"))  # that every project of the tests has
    assert on_disk.pipelines() == [], "nothing is kept on the disk"


def totals(root: str, runs: list[dict[str, Any]]) -> dict[str, int]:
    """The youngest row of each key in the runs, as pyarrow reads them."""
    files, path = pafs.FileSystem.from_uri(f"{root}/totals")
    tables = [ds.dataset(f"{path}/{run['folder']}", filesystem=files).to_table() for run in runs]
    rows = [row for table in tables for row in table.to_pylist()]
    return {row["part"]: row["seen"] for row in sorted(rows, key=lambda row: row["_epoch"])}


def below(uri: str) -> list[str]:
    files, path = pafs.FileSystem.from_uri(uri)
    found = files.get_file_info(pafs.FileSelector(path, recursive=True, allow_not_found=True))
    return [info.path for info in found if info.type == pafs.FileType.File]
