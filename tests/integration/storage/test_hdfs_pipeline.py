"""A whole pipeline with files on HDFS: gate, commit, an hour again, and a commit that a new process finishes."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import pytest
from click.testing import CliRunner
from codes import raises
from integration.projects.project import HOUR, START, Project, hour, make_project, produce
from integration.services.hdfs import Hdfs

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.cli import main
from onceonly.coordinator.reprocess import Reprocess
from onceonly.errors import GateFailed, OutcomeUnknown
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.gate import Gate
from onceonly.pipeline.sinks import FileSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import live_services, owners, spark_stage
from onceonly.settings import Settings
from onceonly.storage import manifests
from onceonly.storage.webhdfs import Unreachable, WebHdfsCluster

pytestmark = pytest.mark.integration
SUITE = {
    "name": "numbers",
    "expectations": [{"type": "expect_column_values_to_be_between", "kwargs": {"column": "n", "max_value": 99}}],
}


@dataclass
class Hours:
    """Ten numbers in each of three hours, each hour an interval; the numbers above 99 are for the gate."""

    project: Project
    folder: str
    spark: Any

    def pipeline(self) -> Pipeline:
        return Pipeline(
            name="hours",
            mode="interval",
            source=KafkaSource(self.project.topic),
            transform=f"transforms_{self.project.topic}:numbers",
            sinks=[FileSink("files", self.folder, partition_by=["part"])],
            gate=Gate(suites={"files": "numbers.expectations.json"}),
        )

    @property
    def parts(self) -> live_services.LiveServices:
        """Of the environment, as for a command."""
        return live_services.LiveServices(Settings.from_env())

    def stage(self, number: int, again: str | None = None) -> Checkpoint:
        through = live_services.open_coordinator(self.parts)
        owner = again or f"run-{number}"
        planned = through.plan(
            self.pipeline(), owner, owners.is_never_alive, hour(number), again and Reprocess(again)
        ).checkpoint
        assert planned is not None
        return spark_stage.stage(self.parts, through, "hours", planned.epoch, owner)

    def commit(self, epoch: int) -> Checkpoint:
        through = live_services.open_coordinator(self.parts)
        through.gate("hours", epoch, "test")
        return through.commit("hours", epoch)

    def read(self) -> tuple[Counter[int], Counter[int]]:
        """By a plain Spark, and by manifest."""
        rows = self.spark.read.parquet(self.folder).collect()
        listed = manifests.dataset(self.folder).to_table()["n"].to_pylist()
        return Counter(row["n"] for row in rows), Counter(listed)


@pytest.fixture
def hours(
    tmp_path: Path, broker: str, spark_server: str, spark: Any, hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch
) -> Hours:
    project = make_project(tmp_path, broker, spark_server, f"in_{uuid.uuid4().hex[:8]}")
    (tmp_path / "numbers.expectations.json").write_text(json.dumps(SUITE))
    numbers = [*range(20), *range(95, 105)]
    produce(project, numbers, {number: START + at // 10 * HOUR for at, number in enumerate(numbers)})
    for name, value in {**project.env(), "SPARK_REMOTE": spark_server, "ONCEONLY_WEBHDFS": hdfs.webhdfs}.items():
        monkeypatch.setenv(name, value)
    return Hours(project, f"{hdfs.root}/{uuid.uuid4().hex}/lake", spark)


def test_a_pipeline_from_kafka_to_hdfs(hours: Hours, hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hours.commit(hours.stage(0).epoch).state is State.COMMITTED
    assert hours.read() == (Counter(range(10)),) * 2

    second = hours.stage(1)
    with monkeypatch.context() as broken:  # the NameNode does what it is asked, and nobody hears of it
        whole = WebHdfsCluster.rename

        def unheard(self: WebHdfsCluster, old: str, new: str) -> None:
            whole(self, old, new)
            if not PurePath(old).name.startswith("."):  # not the probe of a rehearsal, with which nothing is published
                raise Unreachable("the answer is lost")

        broken.setattr(WebHdfsCluster, "rename", unheard)
        with raises(OutcomeUnknown, "no-answer", match="not known"):
            hours.commit(second.epoch)
    [settled] = live_services.open_coordinator(hours.parts).recover("hours", owners.is_never_alive)
    assert settled.state is State.COMMITTED
    assert hours.read() == (Counter(range(20)),) * 2

    with pytest.raises(GateFailed):
        hours.commit(hours.stage(2).epoch)
    assert hours.read() == (Counter(range(20)),) * 2

    before = set(manifests.files(hours.folder))
    hours.commit(hours.stage(0, again="again").epoch)
    assert hours.read() == (Counter(range(20)),) * 2
    assert before - set(manifests.files(hours.folder)), "the hour has new files"

    (hours.project.folder / "hours.py").write_text(f"from onceonly import *\nhours = {hours.pipeline()!r}\n")
    monkeypatch.setenv("ONCEONLY_WEBHDFS", "http://127.0.0.1:9")
    told = CliRunner().invoke(main, ["check", f"{hours.project.folder}/hours.py:hours"])
    assert told.exit_code == 5
    assert "http://127.0.0.1:9 does not answer" in " ".join(told.output.split())
