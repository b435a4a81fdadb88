"""A repair on Spark: the state that it computes from, dead letters, and a gate, each compared with pandas."""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pandas
import pytest
from codes import raises
from deltalake import DeltaTable
from integration.projects.project import Project, hour, make_project, produce
from integration.readers.kafka_reader import create_topic, values

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import Interval
from onceonly.coordinator.reprocess import Reprocess
from onceonly.errors import GateFailed, InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.gate import Gate
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink, StateSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import live_services, owners, spark_stage
from onceonly.storage import manifests

pytestmark = pytest.mark.integration
TOTALS = StateSink("totals", schema="part STRING, total BIGINT, watermark BIGINT", key=["part"])
TRANSFORMS = """
from pyspark.sql import functions as F


def sums(batch, state):
    rows, as_of = numbers(batch), state.schema["watermark"].metadata["onceonly.as_of"]
    new = rows.groupBy("part").agg({"n": "sum"}).withColumnRenamed("sum(n)", "new")
    totals = new.join(state, "part", "left").selectExpr("part", "new + coalesce(total, 0) AS total", "watermark")
    return {"numbers": rows, "report": totals.select("part", "total", F.lit(as_of).alias("as_of"))}, totals


def unreported(batch, state):
    outputs, totals = sums(batch, state)
    return outputs["numbers"], totals


def split(batch, bad=3):
    rows = batch.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS n", "topic", "partition", "offset")
    is_bad = F.col("n") % bad == 0
    good = rows.where(~is_bad).select("n")
    dead = rows.where(is_bad).select("topic", "partition", "offset", F.lit("it is bad").alias("error"))
    late = good.select(F.col("n").cast("string").alias("value"))
    return {"numbers": good, "kept": good, "late": late, "dead": dead}


def split_corrected(batch):
    return split(batch, 5)
"""


class Shop:
    """A topic of numbers, and a pipeline that can be defined anew."""

    def __init__(self, project: Project) -> None:
        self.project = project
        transforms = project.folder / f"transforms_{project.topic}.py"
        transforms.write_text(transforms.read_text() + TRANSFORMS)
        self.through = live_services.open_coordinator(project.parts)
        self.pipeline: Pipeline

    def define(self, transform: str, *sinks: Any, **options: Any) -> None:
        self.pipeline = Pipeline(
            name="shop",
            source=KafkaSource(self.project.topic),
            transform=f"transforms_{self.project.topic}:{transform}",
            sinks=list(sinks),
            **options,
        )

    def stage(self, interval: Interval | None = None, asked: Reprocess | None = None) -> Checkpoint:
        owner = f"run-{uuid.uuid4().hex}"
        planned = self.through.plan(self.pipeline, owner, owners.is_never_alive, interval, asked).checkpoint
        assert planned is not None
        return spark_stage.stage(self.project.parts, self.through, "shop", planned.epoch, owner)

    def run(self, interval: Interval | None = None, asked: Reprocess | None = None) -> Checkpoint:
        staged = self.stage(interval, asked)
        if staged.gate is not None:
            self.through.gate("shop", staged.epoch, "test")
        return self.through.commit("shop", staged.epoch)

    def head(self) -> int:
        return self.through.state_table.view("shop").head.epoch

    def table(self, name: str) -> pandas.DataFrame:
        return DeltaTable(str(self.project.folder / "home" / "lake" / name)).to_pandas()


@pytest.fixture
def shop(tmp_path: Path, broker: str, spark_server: str) -> Shop:
    return Shop(make_project(tmp_path, broker, spark_server, f"repairs_{uuid.uuid4().hex[:8]}"))


# ---- state


def test_a_repair_is_computed_from_the_state_as_it_was(shop: Shop) -> None:
    lake, report = DeltaSink("numbers", "lake/numbers"), DeltaSink("report", "lake/report")
    shop.define("unreported", lake, TOTALS)
    batches = [range(10), range(10, 20), range(20, 30)]
    runs = []
    for batch in batches:
        produce(shop.project, batch)
        runs.append(shop.run())
    before = shop.through.state_table.view("shop").require(3).handles["totals"]

    shop.define("sums", lake, report, TOTALS)
    asked = Reprocess("ann: report", epoch=2, only=("report",), who="ann", reason="report")
    shop.stage(asked=asked)
    shop.through.abort("shop", 4, "it is tried again")
    assert shop.run(asked=asked).epoch == 4
    truth = pandas.DataFrame({"n": [*batches[0], *batches[1]]})
    totals = truth.groupby(truth["n"] % 4)["n"].sum()
    found = shop.table("report")
    assert dict(zip(found["part"].astype(int), found["total"], strict=True)) == dict(totals)
    assert set(found["as_of"]) == {round(runs[1].planned_at.timestamp() * 1e6)}, "the time of what it repairs"

    produce(shop.project, range(30, 40))
    done = shop.run()
    whole = pandas.DataFrame({"n": range(40)})
    last = shop.table("report")
    last = last[last["as_of"] == round(done.planned_at.timestamp() * 1e6)]
    assert dict(zip(last["part"].astype(int), last["total"], strict=True)) == dict(
        whole.groupby(whole["n"] % 4)["n"].sum()
    )
    assert shop.through.state_table.view("shop").require(3).handles["totals"] == before
    assert Counter(shop.table("numbers")["n"]) == Counter(range(40))


def test_a_state_that_is_gone_is_refused_before_anything_is_written(shop: Shop) -> None:
    lake, report = DeltaSink("numbers", "lake/numbers"), DeltaSink("report", "lake/report")
    shop.define("unreported", lake, TOTALS)
    for number in range(2):
        produce(shop.project, range(10 * number, 10 * number + 10))
        shop.run()
    shop.define("sums", lake, report, TOTALS)
    root = shop.project.folder / "home" / "appstate" / "shop" / "totals"
    (first,) = [path for path in root.iterdir() if "-1-1-" in path.name]
    shutil.move(first, shop.project.folder / "elsewhere")
    asked = Reprocess("ann: report", epoch=2, only=("report",), who="ann", reason="report")
    with raises(InvalidPipeline, "state-before-missing", match=first.name):
        shop.stage(asked=asked)
    assert shop.head() == 2
    assert not (shop.project.folder / "home" / "lake" / "report").exists()
    shutil.move(shop.project.folder / "elsewhere", first)
    assert shop.run(asked=asked).state is State.COMMITTED
    found = shop.table("report")
    truth = pandas.Series(range(20))
    assert dict(zip(found["part"].astype(int), found["total"], strict=True)) == dict(truth.groupby(truth % 4).sum())


# ---- dead letters, and a gate


@pytest.mark.parametrize("path", ["in process", "spark"])
def test_each_record_is_a_row_or_a_dead_letter_after_a_repair(shop: Shop, path: str) -> None:
    project, topic = shop.project, create_topic(shop.project.bootstrap, f"late-{uuid.uuid4().hex[:8]}", 1)
    suite = {
        "expectations": [{"type": "expect_column_values_to_be_between", "kwargs": {"column": "n", "max_value": 99}}]
    }
    (project.folder / "numbers.json").write_text(json.dumps({"name": "numbers", **suite}))
    suites = {"numbers": "numbers.json", "kept": "numbers.json"}
    gate = Gate(suites=suites, min_rows={"numbers": 1, "kept": 1}, in_process_rows=0 if path == "spark" else 100)
    sinks = [DeltaSink("numbers", "lake/numbers"), FileSink("kept", "lake/kept", "parquet")]
    late, dead = KafkaSink(name="late", topic=topic), DeltaSink("dead", "lake/dead")
    options = {"mode": "interval", "gate": gate, "dead_letters": dead}
    shop.define("split", *sinks, late, **options)
    produce(project, range(40))
    shop.run(hour(0))
    compare(shop, 3)
    kept, announced = kept_files(project), values(project.bootstrap, topic)

    shop.define("split_corrected", *sinks, late, **options)
    asked = Reprocess("ann: rule", keep=("kept", "late"), who="ann", reason="rule")
    staged = shop.stage(hour(0), asked)
    judged = shop.through.gate("shop", staged.epoch, "test")
    assert judged.verdict is not None
    assert list(judged.verdict["sinks"]) == ["numbers"]
    assert (judged.verdict["outcome"], judged.verdict["sinks"]["numbers"]["path"]) == ("passed", path)
    done = shop.through.commit("shop", staged.epoch)
    assert sorted(done.published) == ["dead", "numbers"]
    compare(shop, 5)
    assert kept_files(project) == kept
    assert values(project.bootstrap, topic) == announced


def test_a_gate_fails_a_repair_and_nothing_changes(shop: Shop) -> None:
    sinks = [DeltaSink("numbers", "lake/numbers"), DeltaSink("kept", "lake/kept")]
    options = {"mode": "interval", "dead_letters": DeltaSink("dead", "lake/dead")}
    late = KafkaSink(name="late", topic=create_topic(shop.project.bootstrap, f"late-{uuid.uuid4().hex[:8]}", 1))
    shop.define("split", *sinks, late, **options)
    produce(shop.project, range(40))
    shop.run(hour(0))
    shop.define("split_corrected", *sinks, late, **options, gate=Gate(max_rows={"numbers": 10, "kept": 0}))
    staged = shop.stage(hour(0), Reprocess("ann: rule", keep=("kept", "late"), who="ann", reason="rule"))
    judged = shop.through.gate("shop", staged.epoch, "test")
    assert judged.verdict is not None
    assert [list(judged.verdict["sinks"]), judged.verdict["outcome"]] == [["numbers"], "failed"]
    with raises(GateFailed, "gate-failed"):
        shop.through.commit("shop", staged.epoch)
    compare(shop, 3)


def compare(shop: Shop, bad: int) -> None:
    """Rows and dead letters together are all records, each once."""
    truth = pandas.Series(range(40))
    assert sorted(shop.table("numbers")["n"]) == sorted(truth[truth % bad != 0])
    dead = [int(value.decode()) for value in shop.table("dead")["value"]]
    assert sorted(dead) == sorted(truth[truth % bad == 0])


def kept_files(project: Project) -> dict[str, bytes]:
    return {str(path): Path(path).read_bytes() for path in manifests.files(project.folder / "home" / "lake" / "kept")}
