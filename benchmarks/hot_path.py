"""Where the time of Kafka → Kafka goes: the whole, and the same without its steps, in one run and in turns."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.goals import CPU
from benchmarks.kafka_sink import copy, ours
from benchmarks.ratio import alternate
from benchmarks.results import Result, ratio
from benchmarks.world import ROWS, TOPIC, world
from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.offsets import TopicRange
from onceonly.kafka.connection import KafkaConnection
from onceonly.pipeline.sinks import KafkaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime.live_services import LiveServices
from onceonly.sinks.kafka import jvm_writer, stage
from onceonly.sinks.kafka.sink import KafkaWriter
from onceonly.sources.kafka import KafkaReader

WHOLE = "Onceonly, whole checkpoint"
READ = "reading alone"
CONNECTOR = "reading alone, by Spark's connector"
SPOOLED = "reading and spooling"
SENT = "reading and sending, in a transaction"
BOTH = "reading, spooling and sending"


def hot_path(folder: Path, rows: int = ROWS, rounds: int = 7) -> Result:
    """Each part alone is the least that the whole could take, if it did nothing else."""
    with world(folder, rows, ("ours", "bare")) as parts:
        numbers = count(1)
        sides = {
            WHOLE: lambda: ours(parts, next(numbers)),
            READ: lambda: _drop(_read(parts)),
            CONNECTOR: lambda: _drop(copy(peers.read(parts, peers.READ))),
            SPOOLED: lambda: _stage(parts, folder, spool=True, send=False),
            SENT: lambda: _stage(parts, folder, spool=False, send=True),
            BOTH: lambda: _stage(parts, folder, spool=True, send=True),
        }
        found = alternate(sides, rounds, warm=2)
    walls = [row for row in found if not row.measure.endswith(CPU)]
    spent = [row for row in found if row.measure.endswith(CPU)]
    shares = [ratio(row, kind[0]) for kind in (walls, spent) for row in kind[1:]]
    return Result(
        "Kafka to Kafka: where the time goes",
        f"{rows:,} small records, on one broker: a whole checkpoint, and parts of its stage, as a share of it. CPU: of "
        "all processes, broker included.",
        [*found, *shares],
        settings={"Onceonly": peers.OURS, CONNECTOR: peers.READ},
        notes=note({row.measure: row.to_json()["median"] for row in found}),
    )


def note(medians: Mapping[str, float]) -> list[str]:
    """What takes which share of the CPU."""
    whole, read, both, sent = (medians[f"{name}{CPU}"] for name in (WHOLE, READ, BOTH, SENT))
    return [
        f"By CPU, reading is {read / whole:.0%} of the whole, sending {(sent - read) / whole:.0%} (both "
        f"with the broker's part of it), the spool {(both - sent) / whole:.0%}, and plan, commit and the state table "
        f"{(whole - both) / whole:.0%}."
    ]


def _read(parts: LiveServices) -> Any:
    source = KafkaReader(KafkaSource(TOPIC), KafkaConnection.plaintext(parts.settings.brokers(None)), Path())
    log = source.log()
    return copy(source.read(parts.spark(), (TopicRange(log.topic, log.topic_id, log.partitions),)))


def _drop(rows: Any) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _stage(parts: LiveServices, folder: Path, spool: bool, send: bool) -> None:
    """As the sink's stage does it, with nothing else. A transaction stays open."""
    config = KafkaSink(name="bare", topic="bare")
    connection = KafkaConnection.plaintext(parts.settings.brokers(None))
    sink = KafkaWriter(config, connection, False, str(folder / "bare-spool"), folder)
    txn = Transaction(uuid.uuid4().hex[:12], "bench", "bare", 1, 1, uuid.uuid4().hex[:12])
    with sink._transactions() as transactions:
        job = replace(sink._job(txn, sink._target(transactions)), has_spool=spool, write=send)
    records = stage.records(config, _read(parts), None)
    settings = jvm_writer.find_settings(parts.spark(), job, "jvm")
    assert settings is not None
    jvm_writer.run(job, records, settings)
    sink.discard(txn, None)
