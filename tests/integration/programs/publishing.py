"""Publishes one checkpoint by a route, and prints what has to be on disk by which mark: for a test that traces it.

    python publishing.py ROUTE FOLDER

A line for each mark: {"by": mark, "files": paths that were synced, "folders": whose names were synced}.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from integration.faults.syncs import mark

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.sink import Changes, Sink

TXN = Transaction("5e1f" * 8, "flights", "lake", 1, 1, "0123456789ab")


def tell(by: str, files: list[str], folders: list[str]) -> None:
    mark(by)
    print(json.dumps({"by": by, "files": files, "folders": folders}), flush=True)


def publish(sink: Sink, handle: Any) -> None:
    sink.commit(sink.rehearse(handle, 1), 1, None)  # type: ignore[arg-type]


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


ROUTES: dict[str, Callable[[str], None]] = {"files": files, "files without Spark": files_without_spark, "state": state}

if __name__ == "__main__":
    ROUTES[sys.argv[1]](sys.argv[2])
