"""State table, table, files, spool, application state and Data Docs on a store; each process has its own Spark."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from deltalake import DeltaTable
from integration.programs.children import output
from integration.projects.light_stores import Reader, reader
from integration.projects.project import Project, make_project, produce
from integration.readers.kafka_reader import committed, new_topic
from integration.services import spark_on_stores
from integration.services.store_server import StoreServer
from integration.services.stores import SERVERS
from patience import PATIENCE

from onceonly.airflow.ui.pages import serve_docs
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable
from onceonly.storage import manifests

pytestmark = [
    pytest.mark.integration,
    pytest.mark.heavy,
    pytest.mark.timeout(3600),
]
KILLED = -9
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
POINTS = [
    *("after claimed row", "after stage of DeltaWriter", "after stage of KafkaWriter", "after stage of StateWriter"),
    "after stage of FileWriter",
    *("after staged row", "before commit of DeltaWriter", "after commit of KafkaWriter", "after commit of StateWriter"),
    *("before commit of FileWriter", "after commit of FileWriter"),
    *("before delete", "after committed row"),
]
NOT_NULL = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "n"}}
TRANSFORM = """
from pyspark.sql import functions as F


def parted(batch, state):
    numbers = batch.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS n", "CAST(partition AS STRING) AS part")
    new = numbers.groupBy("part").agg(F.count("*").alias("new"))
    totals = new.join(state, "part", "left").selectExpr("part", "new + COALESCE(seen, 0) AS seen")
    copy = batch.select("key", "value", "timestamp", "partition")
    return {"numbers": numbers, "files": numbers, "copy": copy}, totals
"""


@pytest.fixture(params=list(SERVERS))
def store(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    with spark_on_stores.reached(request, request.param) as made:
        yield made


@pytest.fixture
def root(store: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Found by delta-rs, pyarrow and Spark, each by itself."""
    root = store.uri("lake")
    places = {f"ONCEONLY_{name.upper()}": f"{root}/{name}" for name in ("state", "spool", "docs")}
    places |= {"ONCEONLY_JARS": str(Settings.from_env().jars)}  # of this checkout, for a project elsewhere
    if emulated := spark_on_stores.emulated(store):
        lines = [f"spark.hadoop.{name} {value}\n" for name, value in emulated.items()]
        (tmp_path / "spark-defaults.conf").write_text("".join(lines))
        places |= {"SPARK_CONF_DIR": str(tmp_path)}
    reached = dict(store.environment)
    if store.scheme == "s3":
        for name in KEYS:
            monkeypatch.delenv(name, raising=False)
        reached = by_profile(reached, tmp_path / "credentials")
    for name, value in (reached | places).items():
        monkeypatch.setenv(name, value)
    return root


def by_profile(reached: dict[str, str], profile: Path) -> dict[str, str]:
    keys = {name.lower(): reached.pop(name) for name in KEYS}
    profile.write_text("\n".join(["[tests]", *(f"{name} = {value}" for name, value in keys.items())]))
    named = {"AWS_PROFILE": "tests", "AWS_SHARED_CREDENTIALS_FILE": str(profile)}
    return {**reached, **named, "AWS_FORCE_CREDENTIAL_LOAD": "true"}


@pytest.fixture
def project(root: str, tmp_path: Path, broker: str) -> Project:
    (tmp_path / "of_store.py").write_text(TRANSFORM)
    (tmp_path / "numbers.expectations.json").write_text(json.dumps({"name": "numbers", "expectations": [NOT_NULL]}))
    made = make_project(tmp_path, broker, "", f"all_on_store_{os.urandom(4).hex()}")
    StateTable.make(f"{root}/state")
    return made


def test_all_of_it_is_on_a_store_and_arrives_once_wherever_it_dies(project: Project, root: str, broker: str) -> None:
    numbers, out = range(10 * (len(POINTS) + 2)), new_topic(broker)
    produce(project, numbers)
    for point in [*POINTS, "-"]:
        child = project.child("victims/mortal_on_store.py", point, out, root)
        printed = output(child, 3 * PATIENCE)
        assert child.returncode == (0 if point == "-" else KILLED), f"{point}: {printed}"
    assert sorted(DeltaTable(f"{root}/numbers").to_pyarrow_table()["n"].to_pylist()) == list(numbers)
    assert Counter(int(record.value or b"") for record in committed(broker, out)) == Counter(numbers)
    assert sorted(manifests.dataset(f"{root}/files").to_table()["n"].to_pylist()) == list(numbers)
    view = StateTable(f"{root}/state").view("all_on_store")
    latest = view.latest
    assert latest is not None and view.open == []
    shown = reader(root.removesuffix("/lake"))
    assert totals(shown, latest.handles["totals"]["runs"]) == Counter(str(number % 4) for number in numbers)
    left = [key for key in shown.keys("lake/spool/") if key.strip("/") != "lake/spool"]  # the folder itself is marked
    assert left == [], "no spool is left"
    page = serve_docs(latest.verdict, "all_on_store", latest.epoch, latest.attempt, "numbers.html")
    assert b"numbers" in bytes(page.body)
    on_disk = StateTable(str(project.folder / "home" / "state"))  # that every project of the tests has
    assert on_disk.pipelines() == [], "nothing is kept on the disk"


def totals(shown: Reader, runs: list[dict[str, Any]]) -> dict[str, int]:
    """The youngest row of each key in the runs, as a plain reader of the store finds them."""
    keys = [key for run in runs for key in shown.keys(f"lake/totals/{run['folder']}/") if key.endswith(".parquet")]
    rows = [row for key in keys for row in parquet.read_table(BytesIO(shown.content(key))).to_pylist()]
    return {row["part"]: row["seen"] for row in sorted(rows, key=lambda row: row["_epoch"])}
