"""Publishes one checkpoint by a route, and prints what has to be on disk by which mark: for a test that traces it.

    python publishing.py ROUTE FOLDER [BROKER]

A line for each mark: {"by": mark, "files": paths that were synced, "folders": whose names were synced}. A sink has the
marks "staged" and "published", and whatever may be recorded then has to be on disk.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from integration.faults.syncs import mark

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.sink import Changes, Sink
from onceonly.delta import log_files, table_files

TXN = Transaction("5e1f" * 8, "flights", "lake", 1, 1, "0123456789ab")


def tell(by: str, files: list[str], folders: list[str]) -> None:
    mark(by)
    print(json.dumps({"by": by, "files": files, "folders": folders}), flush=True)


def publish(sink: Sink, handle: Any) -> None:
    sink.commit(sink.rehearse(handle, 1), 1, None)  # type: ignore[arg-type]


def parents(paths: Iterable[str]) -> set[str]:
    return {os.path.dirname(path) for path in paths}


def session(folder: str) -> Any:
    from onceonly.settings import Settings
    from onceonly.spark.session import session

    os.environ.setdefault("ONCEONLY_HOME", folder)
    return session(Settings.from_env(), {"spark.master": "local[1]", "spark.sql.shuffle.partitions": "1"})


def files_without_spark(folder: str) -> None:
    from unit.lightfiles import LightFiles

    sink = LightFiles(Path(folder, "lake"), partition="day=1")
    _publish_files(sink, sink.stage(TXN, [{"value": number} for number in range(3)]), folder)


def files(folder: str) -> None:
    from onceonly.pipeline.sinks import FileSink
    from onceonly.sinks.files.sink import FileWriter

    config = FileSink("lake", "lake", partition_by=["day"])
    sink = FileWriter(config, f"{folder}/lake")
    rows = session(folder).range(4).selectExpr("id AS n", "id % 2 AS day")
    _publish_files(sink, sink.stage(TXN, rows), folder)


def _publish_files(sink: Sink, handle: Any, folder: str) -> None:
    staged = [f"{handle['folder']}/{file['staged']}" for file in handle["files"]]
    tell("staged", staged, sorted({os.path.dirname(path) for path in staged} | {handle["folder"]}))
    publish(sink, handle)
    finals = [f"{folder}/lake/{file['final']}" for file in handle["files"]]
    folders = {os.path.dirname(path) for path in finals} | {f"{folder}/lake/_onceonly", f"{folder}/lake", folder}
    tell("published", [], sorted(folders))


def state(folder: str) -> None:
    from onceonly.pipeline.sinks import StateSink
    from onceonly.sinks.state.sink import StateWriter

    root = f"{folder}/state"
    sink = StateWriter(StateSink("lake", schema="n BIGINT", key=["n"]), root)
    handle = sink.stage(TXN, Changes(session(folder).range(3).selectExpr("id AS n"), None))
    runs = [f"{root}/{run['folder']}" for run in handle["runs"]]
    tell("staged", [str(path) for run in runs for path in Path(run).glob("*.parquet")], [*runs, f"{root}/{TXN.name}"])
    publish(sink, handle)
    tell("published", [f"{root}/{TXN.name}/_published"], [f"{root}/{TXN.name}"])


# ---- Delta


def delta_without_spark(folder: str) -> None:
    from unit.lightdelta import LightDelta

    _publish_delta(LightDelta(Path(folder, "lake")), [1, 2, 3], keep=True)


def merge_without_spark(folder: str) -> None:
    from unit.lightdelta import LightMerge

    _publish_delta(LightMerge(Path(folder, "lake")), [1, 2, 3], [2, 3, 4], keep=True)


def delta(folder: str) -> None:
    _publish_delta(_delta_sink(folder), _numbers(folder))


def delta_old_files(folder: str) -> None:
    """Files that a VACUUM may have on its list are copied by the rehearsal."""
    from onceonly.sinks.delta import rehearsal

    rehearsal.files_are_old = lambda *_: True  # type: ignore[assignment]
    _publish_delta(_delta_sink(folder), _numbers(folder))


def delta_through_spark(folder: str) -> None:
    _create(folder, "'delta.columnMapping.mode'='name'")
    _publish_delta(_delta_sink(folder), _numbers(folder))


def delta_that_compacts_itself(folder: str) -> None:
    """Its files are replaced by the same call of Spark that has written them."""
    compacting = "'delta.autoOptimize.autoCompact'='true'"
    _create(folder, f"'delta.columnMapping.mode'='name', {compacting}")
    session(folder).conf.set("spark.databricks.delta.autoCompact.minNumFiles", "2")
    _publish_delta(_delta_sink(folder), _numbers(folder).repartition(4))


def merge(folder: str) -> None:
    from onceonly.pipeline.sinks import Merge

    changes = [session(folder).range(n, n + 3).selectExpr("id AS n", f"{n} AS at") for n in (1, 2)]
    _publish_delta(_delta_sink(folder, merge=Merge(keys=["n"], order_by=["at"])), *changes)


def partitions(folder: str) -> None:
    rows = session(folder).range(4).selectExpr("id AS n", "id % 2 AS day")
    _publish_delta(_delta_sink(folder, partition_by=["day"], replace="partitions"), rows, rows)


def _numbers(folder: str) -> Any:
    return session(folder).range(3).selectExpr("id AS n")


def _create(folder: str, properties: str) -> None:
    session(folder).sql(f"CREATE TABLE delta.`{folder}/lake` (n BIGINT) USING delta TBLPROPERTIES ({properties})")


def _delta_sink(folder: str, **options: Any) -> Any:
    from onceonly.pipeline.sinks import DeltaSink
    from onceonly.sinks.delta.sink import DeltaWriter

    uri = f"{folder}/lake"
    return DeltaWriter(DeltaSink("lake", uri, **options), uri, lambda: session(folder))


def _publish_delta(sink: Any, *batches: Any, keep: bool = False) -> None:
    """Publish each batch by a decision of its own; the marks are of the last one.

    Args:
        keep: sync what is staged, which a stage without Spark leaves to its test.
    """

    for number, rows in enumerate(batches, 1):
        txn = replace(TXN, epoch=number, nonce=f"{number:012x}")
        handle = sink.stage(txn, rows)
        if keep:
            table_files.sync_to_disk(sink.uri, handle["folder"])
        if number == len(batches):
            staged = _table_files(f"{sink.uri}/{handle['folder']}")
            tell("staged", staged, sorted(parents(staged)))
        sink.commit(sink.rehearse(handle, number), number, None)
    live = _table_files(sink.uri)
    tell("published", live, sorted(parents(live)))


def _table_files(uri: str) -> list[str]:
    """What its log is and what it names."""

    table = table_files.open_table(uri)
    assert table is not None
    entries = [str(path) for path in Path(uri, log_files.LOG_FOLDER).glob("*.json")]
    return entries + [f"{uri}/{unquote(path)}" for path in table_files.list_active_files(table)]


# ---- Kafka: what stays on a disk is the spool


def kafka(folder: str) -> None:
    _spool(folder, late=False)


def kafka_late(folder: str) -> None:
    _spool(folder, late=True)


def _spool(folder: str, late: bool) -> None:
    from integration.readers.kafka_reader import new_topic

    from onceonly.kafka.connection import KafkaConnection
    from onceonly.pipeline.sinks import KafkaSink
    from onceonly.sinks.kafka.sink import KafkaWriter
    from onceonly.testing.fakes import FakeReceipts

    broker = sys.argv[3]
    config = KafkaSink(name="lake", topic=new_topic(broker, partitions=2))
    sink = KafkaWriter(config, KafkaConnection.plaintext(broker), late, f"{folder}/spool", Path(folder))
    handle = sink.stage(TXN, session(folder).range(4).selectExpr("CAST(id AS STRING) AS value"))
    spooled = [f"{handle['folder']}/{part['spool']}" for part in handle["parts"]]
    tell("staged", spooled, sorted(parents(spooled) | {f"{folder}/spool"}))
    sink.commit(sink.rehearse(handle, 1), 1, FakeReceipts(Path(folder, "receipts")))
    tell("published", [], [])


# ---- the state table, by which all this is recorded


def state_table(folder: str) -> None:
    from unit import tables

    from onceonly.checkpoint.model import Event

    table = tables.real(Path(folder))
    view = table.view("flights")
    log = Path(table.uri, "_pipelines", "flights", "_delta_log")
    mark("staged")
    print(json.dumps({"by": "staged", "files": [], "folders": []}))
    table.append(
        view,
        view.row(1, Event.EMPTY, 0, owner="run", body={"definition": {"name": "flights", "sinks": []}, "ranges": []}),
    )
    tell("published", [], [str(log), str(log.parent), str(log.parent.parent)])


@dataclass(frozen=True)
class Route:
    """How rows of a kind of sink (or the state table's own) get to a disk, and what that needs."""

    kind: str
    publish: Callable[[str], None]
    needs: str = "spark"  # "", "spark" or "broker", which needs Spark, too


ROUTES: dict[str, Route] = {
    "files": Route("files", files),
    "files without Spark": Route("files", files_without_spark, ""),
    "state": Route("state", state),
    "Delta": Route("delta", delta),
    "Delta, old files": Route("delta", delta_old_files),
    "Delta through Spark": Route("delta", delta_through_spark),
    "Delta that compacts itself": Route("delta", delta_that_compacts_itself),
    "Delta without Spark": Route("delta", delta_without_spark, ""),
    "merge": Route("delta", merge),
    "merge without Spark": Route("delta", merge_without_spark, ""),
    "partitions": Route("delta", partitions),
    "Kafka": Route("kafka", kafka, "broker"),
    "Kafka, late": Route("kafka", kafka_late, "broker"),
    "state table": Route("state table", state_table, ""),
}

if __name__ == "__main__":
    ROUTES[sys.argv[1]].publish(sys.argv[2])
