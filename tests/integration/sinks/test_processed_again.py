"""An interval processed again, into a real Delta table and real files: exactly its own rows are replaced."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pandas
import pytest
from codes import raises
from deltalake import DeltaTable, write_deltalake
from integration.projects.project import HOUR, START, Project, hour, make_project, produce

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.coordinator.reprocess import Reprocess
from onceonly.errors import ActionNeeded, InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, FileSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import live_services, owners, spark_stage
from onceonly.storage import manifests

pytestmark = pytest.mark.integration
MENDED = """

def mended(batch):
    return numbers(batch).selectExpr("n + 1000 AS n", "part")
"""


@dataclass
class Hours:
    """Ten numbers in each of three hours, each hour an interval, into a table and a folder."""

    project: Project

    def pipeline(self, transform: str) -> Pipeline:
        return Pipeline(
            name="hours",
            mode="interval",
            source=KafkaSource(self.project.topic),
            transform=f"transforms_{self.project.topic}:{transform}",
            sinks=[DeltaSink("table", "lake/table", partition_by=["part"]), FileSink("files", "lake/files")],
        )

    def stage(self, number: int, transform: str = "numbers", again: bool = False) -> Checkpoint:
        through = live_services.open_coordinator(self.project.parts)
        owner = f"run-{uuid.uuid4().hex}"
        request = owner if again else None
        planned = through.plan(
            self.pipeline(transform), owner, owners.is_never_alive, hour(number), request and Reprocess(request)
        ).checkpoint
        assert planned is not None
        return spark_stage.stage(self.project.parts, through, "hours", planned.epoch, owner)

    def commit(self, epoch: int) -> Checkpoint:
        return live_services.open_coordinator(self.project.parts).commit("hours", epoch)

    def run(self, number: int, transform: str = "numbers", again: bool = False) -> Checkpoint:
        return self.commit(self.stage(number, transform, again).epoch)

    @property
    def lake(self) -> Path:
        return self.project.folder / "home" / "lake"

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(str(self.lake / "table"))

    def read(self) -> tuple[Counter[int], Counter[int], Counter[int]]:
        """In the table, in the folder, and by manifest."""
        folder = self.lake / "files"
        listed = (n for path in manifests.files(folder) for n in pandas.read_parquet(path)["n"])
        rows = self.table.to_pyarrow_table()["n"].to_pylist()
        return Counter(rows), Counter(pandas.read_parquet(folder)["n"]), Counter(listed)


@pytest.fixture
def hours(tmp_path: Path, broker: str, spark_server: str) -> Hours:
    project = make_project(tmp_path, broker, spark_server, f"in_{uuid.uuid4().hex[:8]}")
    transforms = project.folder / f"transforms_{project.topic}.py"
    transforms.write_text(transforms.read_text() + MENDED)
    produce(project, range(30), {number: START + number // 10 * HOUR for number in range(30)})
    return Hours(project)


def test_one_hour_is_replaced_in_one_step_and_the_others_are_not_touched(hours: Hours) -> None:
    for number in range(3):
        hours.run(number)
    before = hours.table.version()
    staged = hours.stage(1, "mended", again=True)
    assert hours.read() == (Counter(range(30)),) * 3
    done = hours.commit(staged.epoch)
    assert (done.state, done.replaces) == (State.COMMITTED, 2)
    truth = Counter([*range(10), *range(1010, 1020), *range(20, 30)])
    assert hours.read() == (truth,) * 3
    assert hours.table.version() == before + 1
    assert hours.commit(staged.epoch).state is State.COMMITTED
    assert hours.read() == (truth,) * 3


def test_no_rows_may_take_the_place_of_some(hours: Hours) -> None:
    hours.run(0)
    hours.run(1)
    transforms = hours.project.folder / f"transforms_{hours.project.topic}.py"
    transforms.write_text(transforms.read_text() + "\n\ndef none(batch):\n    return numbers(batch).where('n < 0')\n")
    import sys

    sys.modules.pop(transforms.stem, None)
    hours.run(0, "none", again=True)
    assert hours.read() == (Counter(range(10, 20)),) * 3


def test_rows_that_others_have_rewritten_are_not_guessed_at(hours: Hours) -> None:
    hours.run(0)
    hours.run(1)
    hours.table.optimize.compact()
    with raises(InvalidPipeline, "published-rows-fixed", match="cannot be replaced") as refused:
        hours.stage(0, again=True)
    assert "rewrote" in refused.value.why
    assert hours.read() == (Counter(range(20)),) * 3


def test_rows_that_are_rewritten_after_the_staging_stop_the_commit(hours: Hours) -> None:
    hours.run(0)
    staged = hours.stage(0, "mended", again=True)
    hours.table.delete("n = 3")
    with raises(ActionNeeded, "replaced-rows-changed", match="were changed"):
        hours.commit(staged.epoch)
    assert hours.read()[0] == Counter(n for n in range(10) if n != 3)


def test_rows_of_others_in_the_same_partitions_stay(hours: Hours) -> None:
    hours.run(0)
    staged = hours.stage(0, "mended", again=True)
    foreign = hours.table.to_pyarrow_table().slice(0, 1)
    write_deltalake(hours.table, foreign, mode="append")  # a copy of one row, by somebody else, meanwhile
    hours.commit(staged.epoch)
    assert hours.read()[0] == Counter([*range(1000, 1010), foreign["n"][0].as_py()])


def test_a_table_that_only_takes_appends_is_refused(hours: Hours) -> None:
    hours.run(0)
    hours.table.alter.set_table_properties({"delta.appendOnly": "true"})
    with raises(InvalidPipeline, "published-rows-fixed", match="cannot be replaced") as refused:
        hours.stage(0, again=True)
    assert "appendOnly" in refused.value.why


def test_files_without_their_manifest_are_refused(hours: Hours) -> None:
    done = hours.run(0)
    (hours.lake / "files" / done.handles["files"]["manifest"]).unlink()
    with pytest.raises(ActionNeeded) as refusal:
        hours.stage(0, again=True)
    assert refusal.value.code == "target-went-back"
