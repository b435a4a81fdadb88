"""Going back in a real table, real files and a real state, and on again: as if the later runs had never been."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from integration.projects.project import Project, make_project, produce
from person import seen

from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.sink import StateBackend
from onceonly.cli import main
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink, StateSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import live_services, owners, spark_stage
from onceonly.storage import manifests

pytestmark = pytest.mark.integration
TOTALS = StateSink("totals", schema="part STRING, total BIGINT", key=["part"])
SUMS = """

def sums(batch, state):
    rows = numbers(batch)
    new = rows.groupBy("part").agg({"n": "sum"}).withColumnRenamed("sum(n)", "new")
    totals = new.join(state, "part", "left").selectExpr("part", "new + coalesce(total, 0) AS total")
    return rows, totals
"""


@dataclass
class Sums:
    """Numbers 0, 1, 2, … ten by checkpoint, and their sum by partition."""

    project: Project
    env: dict[str, str]
    sinks: list[Any]

    def run(self, number: int) -> Checkpoint:
        produce(self.project, range(10 * number, 10 * number + 10))
        return self.checkpoint()

    def checkpoint(self) -> Checkpoint:
        pipeline = Pipeline(
            name="sums",
            source=KafkaSource(self.project.topic),
            transform=f"transforms_{self.project.topic}:sums",
            sinks=[*self.sinks, TOTALS],
        )
        through = live_services.open_coordinator(self.project.parts)
        planned = through.plan(pipeline, f"run-{uuid.uuid4().hex}", owners.is_never_alive).checkpoint
        assert planned is not None
        spark_stage.stage(self.project.parts, through, "sums", planned.epoch, None)
        return through.commit("sums", planned.epoch)

    def cli(self, *arguments: str, answer: str = "") -> Any:
        return CliRunner().invoke(main, ["rewind", "sums", *arguments], input=answer, env=self.env)

    def seen(self) -> tuple[str, str]:
        return seen(live_services.open_coordinator(self.project.parts).state_table, "sums")

    def published(self) -> tuple[Counter[int], Counter[int], Counter[int]]:
        """In the table, in the folder, and by manifest."""
        lake = self.project.folder / "home" / "lake"
        listed = (n for path in manifests.files(lake / "files") for n in pandas.read_parquet(path)["n"])
        rows = DeltaTable(str(lake / "table")).to_pyarrow_table()["n"].to_pylist()
        return Counter(rows), Counter(pandas.read_parquet(lake / "files")["n"]), Counter(listed)

    def totals(self) -> dict[str, int]:
        latest = live_services.open_coordinator(self.project.parts).state_table.view("sums").latest
        assert latest is not None
        writer = self.project.parts.sink(latest.definition.pipeline, "totals")
        assert isinstance(writer, StateBackend)
        state = writer.read(self.project.parts.spark(), latest.handles["totals"])
        return {row["part"]: row["total"] for row in state.collect()}


def truth(numbers: int) -> dict[str, int]:
    return {str(part): sum(n for n in range(numbers) if n % 4 == part) for part in range(4)}


@pytest.fixture
def sums(tmp_path: Path, broker: str, spark_server: str) -> Sums:
    project = make_project(tmp_path, broker, spark_server, f"in_{uuid.uuid4().hex[:8]}")
    transforms = project.folder / f"transforms_{project.topic}.py"
    transforms.write_text(transforms.read_text() + SUMS)
    sinks = [DeltaSink("table", "lake/table"), FileSink("files", "lake/files")]
    return Sums(project, {**project.env(), "SPARK_REMOTE": spark_server}, sinks)


def test_back_and_on_again(sums: Sums) -> None:
    for number in range(4):
        sums.run(number)
    assert sums.totals() == truth(40)

    refused = sums.cli("2", "--reason", "wrong prices")
    assert refused.exit_code == 2
    for epoch, rows in ((3, "table: 10 rows"), (4, "files: 10 rows")):
        assert str(epoch) in refused.output and rows in refused.output
    assert sums.published() == (Counter(range(40)),) * 3

    done = sums.cli("2", "--reason", "wrong prices", "--json", *sums.seen())
    assert done.exit_code == 0, done.output
    said = json.loads(done.output)
    assert (said["undone"], said["rewinds_to"], said["state"]) == ([4, 3], 2, "committed")
    assert sums.published() == (Counter(range(20)),) * 3
    assert sums.totals() == truth(20)

    sums.checkpoint()
    assert sums.published() == (Counter(range(40)),) * 3
    assert sums.totals() == truth(40)
    staging = sums.project.folder / "home" / "lake" / ".files.staged"
    assert not staging.exists()


def test_what_is_in_kafka_stays_and_so_does_everything_else(sums: Sums, broker: str) -> None:
    from integration.readers.kafka_reader import new_topic

    sums.sinks.append(KafkaSink(name="copy", topic=new_topic(broker)))
    transforms = sums.project.folder / f"transforms_{sums.project.topic}.py"
    as_record = 'rows.selectExpr("CAST(n AS STRING) AS value")'
    both = f'return {{"table": rows, "files": rows, "copy": {as_record}}}, totals'
    transforms.write_text(transforms.read_text().replace("return rows, totals", both))
    sums.run(0)
    sums.run(1)
    refused = sums.cli("1", "--reason", "no", *sums.seen())
    assert refused.exit_code == 2
    assert "sink 'copy': published rows cannot be taken back" in refused.output
    assert sums.published() == (Counter(range(20)),) * 3


def test_a_kill_after_the_past_was_deleted_loses_nothing(sums: Sums, monkeypatch: pytest.MonkeyPatch) -> None:
    """`forget`: earlier runs are deleted once the new one is marked, and before that is recorded."""
    sums.run(0)
    sums.run(1)
    through = live_services.open_coordinator(sums.project.parts)
    assert through.forget("sums").epoch == 2

    def die(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr("onceonly.sinks.state.sink.make_proof", die)
        sums.run(2)
    folder = sums.project.folder / "home" / "appstate" / "sums" / "totals"
    assert [path.name.split("-")[3] for path in folder.iterdir()] == ["3"], "what was before is deleted"
    sums.run(3)  # settles it first
    assert sums.totals() == truth(40)
    assert sums.published() == (Counter(range(40)),) * 3
    refused = sums.cli("1", "--reason", "wrong prices", *sums.seen())
    assert (refused.exit_code, "state-run-missing" in refused.output) == (2, True), refused.output
    assert sums.cli("3", "--reason", "wrong prices", *sums.seen()).exit_code == 0
    assert sums.totals() == truth(30)
