"""Violations that are seeded behind the product's back, to see that they are found."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from onceonly.dev.chaos.project import COLUMN, COPY

DUPLICATE, LOSS, COPY_DUPLICATE = "duplicate", "loss", "copy-duplicate"
DAMAGES = (DUPLICATE, LOSS, COPY_DUPLICATE)
TOPIC_SECONDS = 30.0


def damage(kind: str, table: Path, bootstrap: str) -> None:
    """Do what somebody does who does not know of the pipeline."""
    if kind == DUPLICATE:
        _add_a_file_again(table)
    elif kind == LOSS:
        _delete_a_row(table)
    else:
        _send_again(bootstrap)


def _add_a_file_again(table: Path) -> None:
    """Add a copy of a file, as a job does that is run twice by hand."""
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

    delta = DeltaTable(str(table))
    file = pa.table(delta.get_add_actions(flatten=True)).to_pylist()[0]
    path, statistics = table / file["path"], {"numRecords": file["num_records"]}
    copy = table / f"again-{path.name}"
    shutil.copyfile(path, copy)
    action = AddAction(copy.name, copy.stat().st_size, {}, int(time.time() * 1000), True, json.dumps(statistics))
    delta.create_write_transaction([action], "append", delta.schema())


def _delete_a_row(table: Path) -> None:
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    delta = DeltaTable(str(table))
    query = QueryBuilder().register("target", delta).execute(f"SELECT min({COLUMN}) AS n FROM target")
    delta.delete(f"{COLUMN} = {pa.table(query.read_all())['n'][0].as_py()}")


def _send_again(bootstrap: str) -> None:
    """Send the first number once more."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(COPY, b"0", partition=0)
    assert not producer.flush(TOPIC_SECONDS)
