"""Tables that Spark's catalog knows by name: looked up by each plan, written to where they were then."""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from codes import raises
from deltalake import DeltaTable
from integration.projects.project import Project, make_project, produce

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.errors import InvalidPipeline, NotCommitted, StageAgain
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, Merge
from onceonly.pipeline.sources import DeltaSource
from onceonly.runtime import live_services, owners, spark_stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


@pytest.fixture
def project(tmp_path: Path, broker: str, spark_server: str, request: pytest.FixtureRequest) -> Project:
    name = "".join(character if character.isalnum() else "_" for character in request.node.name.removeprefix("test_"))[
        :60
    ]
    made = make_project(tmp_path, broker, spark_server, name)
    produce(made, range(8))
    return made


@pytest.fixture
def table(project: Project, spark: SparkSession, request: pytest.FixtureRequest) -> str:
    """The name of a table that somebody has made, in a folder that its name does not tell."""
    name = f"default.{project.topic}"
    request.addfinalizer(lambda: spark.sql(f"DROP TABLE IF EXISTS {name}"))
    create(spark, name, project.folder / "somewhere")
    return f"spark_catalog.{name}"


def create(spark: SparkSession, name: str, place: Path, parts: str = "") -> None:
    spark.sql(f"CREATE TABLE {name} (n BIGINT, part STRING) USING delta {parts} LOCATION '{place}'")


def by_name(project: Project, table: str, **more: Any) -> Pipeline:
    return replace(project.pipeline(), sinks=[DeltaSink("numbers", table=table, **more)])


def plan(project: Project, pipeline: Pipeline) -> Checkpoint:
    found = live_services.locate_tables(pipeline, project.parts)
    planned = live_services.open_planner(project.parts).plan(found, uuid.uuid4().hex, owners.is_never_alive).checkpoint
    assert planned is not None
    return planned


def stage(project: Project, checkpoint: Checkpoint) -> Checkpoint:
    through = live_services.open_coordinator(project.parts)
    return spark_stage.stage(project.parts, through, checkpoint.pipeline, checkpoint.epoch, checkpoint.owner)


def commit(project: Project, checkpoint: Checkpoint) -> Checkpoint:
    return live_services.open_coordinator(project.parts).commit(checkpoint.pipeline, checkpoint.epoch)


def run(project: Project, pipeline: Pipeline) -> Checkpoint:
    return commit(project, stage(project, plan(project, pipeline)))


def numbers(place: Path, column: str = "n") -> Counter[int]:
    return Counter(DeltaTable(str(place)).to_pyarrow_table()[column].to_pylist())


HOW: dict[str, Callable[[Project, str], Pipeline]] = {
    "append": by_name,
    "replace": lambda project, table: by_name(project, table, partition_by=["part"], replace="partitions"),
    "merge": lambda project, table: by_name(project, table, merge=Merge(keys=["n"], order_by=["part"])),
}


@pytest.mark.parametrize("how", HOW)
def test_each_way_to_write(project: Project, spark: SparkSession, table: str, how: str) -> None:
    place = project.folder / "somewhere"
    if how == "replace":
        spark.sql(f"DROP TABLE {table}")
        place = project.folder / "in parts"
        create(spark, table, place, "PARTITIONED BY (part)")
    pipeline = HOW[how](project, table)
    done = run(project, pipeline)
    produce(project, range(8, 12))
    run(project, pipeline)
    assert numbers(place) == Counter(range(8, 12) if how == "replace" else range(12))
    [sink] = done.definition.json["sinks"]
    assert (sink["table"], sink["path"]) == (table, str(place))
    assert spark.table(table).count() == numbers(place).total(), "Spark finds them by the name"
    through = live_services.open_planner(project.parts)
    again = through.plan(live_services.locate_tables(pipeline, project.parts), "another run", owners.is_never_alive)
    assert again.checkpoint is None, "there is nothing left to read"


@pytest.mark.parametrize("folder", ["in parts", "données#1 50%off"])
def test_folders_that_a_uri_would_write_otherwise(
    project: Project, spark: SparkSession, table: str, folder: str
) -> None:
    """By name and by path. Spark writes the rows, as the table is partitioned by text."""
    place = project.folder / folder
    spark.sql(f"DROP TABLE {table}")
    create(spark, table, place, "PARTITIONED BY (part)")
    run(project, by_name(project, table))
    assert numbers(place) == Counter(range(8))
    other = project.folder / f"{folder} by path"
    sinks = [DeltaSink("numbers", path=str(other), partition_by=["part"])]
    run(project, replace(project.pipeline(), name="by_path", sinks=sinks))
    assert numbers(other) == Counter(range(8))
    assert len([path for path in project.folder.iterdir() if path.name.startswith(folder[:2])]) == 2


def test_a_table_is_read_by_its_name(project: Project, spark: SparkSession, table: str) -> None:
    spark.sql(f"INSERT INTO {table} SELECT id, 'x' FROM range(20)")
    module = project.folder / f"transforms_{project.topic}.py"
    module.write_text(module.read_text() + "\n\ndef same(batch):\n    return batch\n")
    pipeline = replace(
        project.pipeline(transform="same"),
        name="reads",
        source=DeltaSource(table=table),
        sinks=[DeltaSink("numbers", path=str(project.folder / "copy"))],
    )
    run(project, pipeline)
    spark.sql(f"INSERT INTO {table} VALUES (20, 'y')")
    run(project, pipeline)
    assert numbers(project.folder / "copy") == Counter(range(21))


def test_what_is_no_table_to_write_to_is_refused(project: Project, spark: SparkSession, table: str) -> None:
    """With the reason, and before anything is planned."""
    spark.sql(f"CREATE VIEW default.{project.topic}_view AS SELECT 1 AS n")
    spark.sql(f"CREATE TABLE default.{project.topic}_parquet (n INT) USING parquet")
    for name, code, why in (
        ("default.no_such_table", "table-not-in-catalog", "(?s)no Spark catalog has a table.*CREATE TABLE"),
        ("no_such_catalog.default.t", "table-not-in-catalog", "(?s)no Spark catalog has a table.*CREATE TABLE"),
        (f"default.{project.topic}_view", "not-a-delta-table", "is a view"),
        (f"default.{project.topic}_parquet", "not-a-delta-table", "(?s)is not a Delta table.*parquet"),
    ):
        with raises(InvalidPipeline, code, match=why):
            plan(project, by_name(project, name))
    assert live_services.open_coordinator(project.parts).state_table.pipelines() == []
    spark.sql(f"DROP VIEW default.{project.topic}_view")
    spark.sql(f"DROP TABLE default.{project.topic}_parquet")


@pytest.mark.parametrize("feature", ["catalogManaged", "coordinatedCommits-preview"])
def test_a_table_whose_catalog_decides_about_commits_is_refused(
    project: Project, spark: SparkSession, table: str, feature: str
) -> None:
    """By its path as by its name: its folder is no evidence."""
    place = project.folder / "somewhere"
    entry = place / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    reads = ["catalogManaged"] if feature == "catalogManaged" else []
    writes = [feature, "inCommitTimestamp", "appendOnly", "invariants"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": reads, "writerFeatures": writes}
    changed = [{"protocol": protocol} if "protocol" in action else action for action in actions]
    entry.write_text("".join(json.dumps(action) + "\n" for action in changed))
    (entry.parent / f".{entry.name}.crc").unlink(missing_ok=True)
    (entry.parent / f"{0:020}.crc").unlink(missing_ok=True)
    by_path = replace(project.pipeline(), name="by_path", sinks=[DeltaSink("numbers", path=str(place))])
    planned = plan(project, by_path)
    with raises(InvalidPipeline, "table-managed", match="is managed by its catalog"):
        stage(project, planned)
    with pytest.raises((InvalidPipeline, NotCommitted)):
        plan(project, by_name(project, table))
    assert sorted(path.name for path in place.iterdir()) == ["_delta_log"]


def test_a_table_that_is_made_again_after_the_plan(project: Project, spark: SparkSession, table: str) -> None:
    """Nothing is staged for another table; nor is one made in place of a table that was dropped."""
    place, pipeline = project.folder / "somewhere", by_name(project, table)
    planned = plan(project, pipeline)
    spark.sql(f"DROP TABLE {table}")
    shutil.rmtree(place)
    with raises(NotCommitted, "named-table-replaced", match=r"(?s)is not at .*somewhere any more.*there is none"):
        stage(project, planned)
    assert not place.exists()
    create(spark, table, place)
    with raises(
        NotCommitted, "named-table-replaced", match=r"(?s)is not at .*somewhere any more.*looks its name up again"
    ):
        stage(project, planned)
    assert sorted(path.name for path in place.iterdir()) == ["_delta_log"]
    again = plan(project, pipeline)
    assert (again.epoch, again.ranges) == (planned.epoch, planned.ranges)
    commit(project, stage(project, again))
    assert numbers(place) == Counter(range(8))


def test_a_table_that_is_made_again_after_the_stage(project: Project, spark: SparkSession, table: str) -> None:
    place = project.folder / "somewhere"
    staged = stage(project, plan(project, by_name(project, table)))
    spark.sql(f"DROP TABLE {table}")
    shutil.rmtree(place)
    create(spark, table, place)
    with pytest.raises(StageAgain):
        commit(project, staged)
    assert not numbers(place)
    again = stage(project, plan(project, by_name(project, table)))
    assert commit(project, again).state is State.COMMITTED
    assert numbers(place) == Counter(range(8))


def test_a_name_that_moves_takes_the_next_checkpoint_with_it(project: Project, spark: SparkSession, table: str) -> None:
    """What is planned goes to the table of the plan, also by a recovery that knows nothing of catalogs."""
    place, other, pipeline = project.folder / "somewhere", project.folder / "elsewhere", by_name(project, table)
    staged = stage(project, plan(project, pipeline))
    spark.sql(f"DROP TABLE {table}")
    create(spark, table, other)
    commit(project, staged)
    assert (numbers(place), numbers(other)) == (Counter(range(8)), Counter())
    produce(project, range(8, 12))
    run(project, pipeline)
    assert (numbers(place), numbers(other)) == (Counter(range(8)), Counter(range(8, 12)))


def test_a_path_and_a_name_of_one_table_are_one_target(project: Project, table: str) -> None:
    """A pipeline that was renamed, and names its table otherwise, would publish everything again."""
    run(project, by_name(project, table))
    place = str(project.folder / "somewhere")
    renamed = replace(project.pipeline(), name="renamed", sinks=[DeltaSink("numbers", path=place)])
    with raises(InvalidPipeline, "pipeline-renamed", match="does what 'numbers_chained' has done so far"):
        plan(project, renamed)
