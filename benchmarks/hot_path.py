"""Where the time of Kafka → Kafka goes: each step bare, beside the whole, in one run and in turns."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from pathlib import Path

import pyarrow as pa

from benchmarks import peers
from benchmarks.kafka_sink import copy, ours
from benchmarks.ratio import CPU, alternate
from benchmarks.results import Result, ratio
from benchmarks.world import ROWS, record, world
from onceonly.kafka.librdkafka import Producer, Records
from onceonly.runtime.live_services import LiveServices
from onceonly.sinks.kafka import spool
from onceonly.sinks.kafka.producer import ROOM

LIBRDKAFKA = {"acks": "all", "linger.ms": 5, "batch.size": 1_000_000}
WRITERS = 2  # processes: as many as cores
BATCH = 10_000
WHOLE = "Onceonly, whole checkpoint"
HANDED = "Spark reads and hands over to Python (Arrow)"
WRITTEN = "librdkafka writes, a batch at a time, idempotent and in a transaction"


def hot_path(folder: Path, rows: int = ROWS, rounds: int = 2) -> Result:
    """Each step alone is the least that the whole could take, if it did nothing else."""
    with world(folder, rows, ("ours", "bare")) as parts:
        numbers, bootstrap = count(1), parts.settings.brokers(None)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(WRITERS, context) as pool:

            def side(work: object, *arguments: object) -> None:
                list(pool.map(work, *([each] * WRITERS for each in arguments)))  # type: ignore[arg-type]

            share = rows // WRITERS
            sides = {
                WHOLE: lambda: ours(parts, next(numbers)),
                "Spark reads, nothing else": lambda: _read(parts),
                HANDED: lambda: _hand_over(copy(peers.as_ours(parts, peers.READ))),
                "Arrow hand-over, nothing else": lambda: _hand_over(_made(parts, rows)),
                "librdkafka writes, record by record": lambda: side(_produce, bootstrap, share),
                WRITTEN: lambda: side(_transact, bootstrap, share),
                "the spool, nothing else": lambda: side(_spool, str(folder / "bare-spool"), share),
            }
            found = alternate(sides, rounds)
    walls = [row for row in found if not row.measure.endswith(CPU)]
    spent = [row for row in found if row.measure.endswith(CPU)]
    shares = [ratio(row, kind[0]) for kind in (walls, spent) for row in kind[1:]]
    return Result(
        "Kafka to Kafka: where the time goes",
        f"{rows:,} small records, on one broker: a whole checkpoint, and each of its steps alone, as a share of it. "
        f"Steps outside Spark run in {WRITERS} processes, one for each core. CPU: of all processes, broker included.",
        [*found, *shares],
        settings={"Spark reads": peers.READ, "librdkafka": {key: str(value) for key, value in LIBRDKAFKA.items()}},
        notes=note({row.measure: row.to_json()["median"] for row in found}),
    )


def note(medians: Mapping[str, float]) -> list[str]:
    """What the limit is, and how far the whole is from it, by the CPU of each."""
    whole, read, write = (medians[f"{name}{CPU}"] for name in (WHOLE, HANDED, WRITTEN))
    left = whole - read - write
    return [
        f"By CPU, reading through Spark with the hand-over to Python is {read / whole:.0%} of the whole, and writing a "
        f"transaction with librdkafka {write / whole:.0%} (both with the broker's part of it): the limit is their sum. "
        f"The whole takes {whole / (read + write):.2f} times that. The rest, {left / whole:.0%}, is the spool, checks "
        "of rows, plan, commit and the state table."
    ]


def _read(parts: LiveServices) -> None:
    copy(peers.as_ours(parts, peers.READ)).write.format("noop").mode("overwrite").save()


def _made(parts: LiveServices, rows: int):  # type: ignore[no-untyped-def]
    """Rows of the topic's sizes, made where they are needed."""
    numbers = parts.spark().range(0, rows, numPartitions=4)
    value = "CAST(concat('value-', lpad(CAST(id AS STRING), 50, '0')) AS BINARY) AS value"
    return numbers.selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS key", value)


def _hand_over(rows) -> None:  # type: ignore[no-untyped-def]
    rows.mapInArrow(_counted, "n BIGINT").collect()


def _counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"n": [sum(batch.num_rows for batch in batches)]})


def _produce(bootstrap: str, rows: int) -> None:
    """As most programs in Python do it."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, **LIBRDKAFKA, "queue.buffering.max.messages": 10_000_000})
    made = [record(number) for number in range(BATCH)]
    for _ in range(0, rows, BATCH):
        for value, key in made:
            producer.produce("bare", value, key)
        producer.poll(0)
    producer.flush()


def _transact(bootstrap: str, rows: int) -> None:
    """As our sink does it, with nothing else. The transaction stays open."""
    config = {"bootstrap.servers": bootstrap, **LIBRDKAFKA, "enable.idempotence": True}
    target = f"bare-{multiprocessing.current_process().pid}-{time.monotonic_ns()}"
    producer = Producer(config | {"transactional.id": target, "delivery.report.only.error": True}, print)
    producer.begin(60)
    batch = _batch()
    for _ in range(0, rows, BATCH):
        records = Records(batch)
        while (done := producer.queue("bare", records)) < len(records):
            records = records.skip(done)
            producer.poll(ROOM)
    while producer.flush(1):
        pass


def _spool(folder: str, rows: int) -> None:
    file, batch = spool.SpoolFile(folder, 0), _batch()
    for _ in range(0, rows, BATCH):
        file.write(batch)
    file.close()
    Path(folder, file.name).unlink()


def _batch() -> pa.RecordBatch:
    pairs = [record(number) for number in range(BATCH)]
    made = {"value": [value for value, _ in pairs], "key": [key for _, key in pairs], "topic": ["bare"] * BATCH}
    columns = [
        pa.array(made[f.name], f.type) if f.name in made else pa.nulls(BATCH, f.type) for f in spool.SPOOL_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=spool.SPOOL_SCHEMA)
