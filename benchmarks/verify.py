"""`verify` of a pipeline with 10,000 checkpoints in a table, a folder and a topic: seconds, and requests."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.integration.projects.past import Past
from tests.unit.lightdelta import LightDelta
from tests.unit.lightfiles import LightFiles
from tests.unit.lightkafka import LightKafka

from benchmarks.results import Result, Row
from benchmarks.world import TOPIC, world
from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.sink import Sink
from onceonly.checkpoint.verification import Published
from onceonly.kafka.connection import KafkaConnection
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime.live_services import LiveServices
from onceonly.runtime.verifications import verify_pipeline
from onceonly.sinks.delta.file_check import FileCheck
from onceonly.statetable.table import StateTable
from onceonly.testing.ledger import FIRST_TIME, Ledger
from onceonly.testing.targets import Committer, Target

PIPELINE = "copies"
TABLE, FILES, COPY = "table", "files", "copy"  # the sinks
WAYS = {"verify": False, "verify --deep": True}
PROGRESS = 1_000  # checkpoints


@dataclass
class Output(Target):
    """One target of the pipeline, which is written without Spark."""

    make_sink: Callable[[], Sink]

    def sink(self) -> Sink:
        return self.make_sink()

    def published(self) -> list[int]:
        raise NotImplementedError

    def traces(self, txn: Transaction) -> list[Any]:
        raise NotImplementedError


def verify(folder: Path, checkpoints: int = 10_000, rounds: int = 3) -> Result:
    """All checkpoints are published first, one row of each to each target, which is not measured."""
    with world(folder, checkpoints, (COPY,)) as services:
        pipeline = _publish(folder, services, checkpoints)
        requests = {way: Counter[str]() for way in WAYS}
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way, is_deep in WAYS.items():
                with _count_requests(folder) as counts:
                    times[way].append(_verify(services, pipeline, is_deep, checkpoints))
                requests[way] = counts
    rows = [Row(way, "s", runs) for way, runs in times.items()]
    for way, counts in requests.items():
        rows += [Row(f"{way}: {where}", "requests", [number]) for where, number in sorted(counts.items())]
    return Result(
        "Verify",
        f"{checkpoints:,} checkpoints, each with a row in a Delta table, a folder of files and a Kafka topic; the "
        "source is a topic. The result is recorded, as the command does it. Requests are files opened and folders "
        "listed, or what was sent to the brokers, for the source as well.",
        rows,
    )


def _verify(services: LiveServices, pipeline: Pipeline, is_deep: bool, checkpoints: int) -> float:
    started = time.perf_counter()
    data, problem = verify_pipeline(LiveServices(services.settings), pipeline.name, is_deep)
    seconds = time.perf_counter() - started
    assert problem is None
    assert data["checkpoints"] == {"right": checkpoints, "wrong": 0, "unknown": 0}, data["findings"]
    return seconds


@contextmanager
def _count_requests(folder: Path) -> Iterator[Counter[str]]:
    """Count while the block runs: by target, and those to the brokers."""
    from kafka.net.manager import KafkaConnectionManager

    counts, is_counting = Counter[str](), True
    send, read = KafkaConnectionManager.send, FileCheck._read

    def count_file(event: str, arguments: tuple[Any, ...]) -> None:
        if not is_counting or event not in ("open", "os.listdir", "os.scandir"):
            return
        path = str(arguments[0])
        for name in (TABLE, FILES):
            if path.startswith(str(folder / name)):
                counts[name] += 1

    def count_sent(*arguments: Any, **options: Any) -> Any:
        counts["brokers"] += 1
        return send(*arguments, **options)

    def count_read(*arguments: Any) -> Any:
        counts[TABLE] += 1  # pyarrow opens it itself, and no hook is called
        return read(*arguments)

    sys.addaudithook(count_file)  # it cannot be removed
    with patch.object(KafkaConnectionManager, "send", count_sent), patch.object(FileCheck, "_read", count_read):
        yield counts
    is_counting = False


def _publish(folder: Path, services: LiveServices, checkpoints: int) -> Pipeline:
    """Publish that many checkpoints of one record, as the coordinator does it, and record them in one commit."""
    pipeline = Pipeline(
        name=PIPELINE,
        source=KafkaSource(TOPIC),
        transform="benchmarks.kafka_sink:copy",
        sinks=[
            DeltaSink(TABLE, path=str(folder / TABLE)),
            FileSink(FILES, path=str(folder / FILES), format="json"),
            KafkaSink(COPY, topic=COPY, bootstrap=services.settings.bootstrap),
        ],
    )
    state, names = StateTable(services.settings.state), [sink.name for sink in pipeline.sinks]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        work = partial(_fill, folder, state.id, services.settings.brokers(None), checkpoints)
        published = dict(zip(names, pool.map(work, names), strict=True))
    _record(state, services, pipeline, published)
    return pipeline


def _fill(folder: Path, state_id: str, bootstrap: str, checkpoints: int, name: str) -> Sequence[Published]:
    """Publish all checkpoints to one target."""
    target = _open_output(folder, bootstrap, name)
    receipts = folder / "receipts" / name
    receipts.mkdir(parents=True)
    ledger = Ledger(target.sink, Committer(target, str(receipts)))
    for number in range(checkpoints):
        txn = Transaction(state_id, PIPELINE, name, number + 1, 1, f"{number:012x}")
        rows = [number] if name == TABLE else [{"value": number}]
        sink: Any = target.sink()
        ledger.publish(number + 1, sink.stage(txn, rows))
        target.sink().release(txn)
        if number % PROGRESS == 0:
            print(f"{name}: {number:,} of {checkpoints:,} checkpoints published", flush=True)
    return ledger.published


def _open_output(folder: Path, bootstrap: str, name: str) -> Output:
    if name == TABLE:
        return Output(lambda: LightDelta(folder / TABLE, TABLE))
    if name == FILES:
        return Output(lambda: LightFiles(folder / FILES, FILES))
    config, connection = KafkaSink(COPY, topic=COPY, bootstrap=bootstrap), KafkaConnection.plaintext(bootstrap)
    return Output(lambda: LightKafka(config, connection, False, str(folder / "spool"), folder / "kafka"))


def _record(
    state: StateTable, services: LiveServices, pipeline: Pipeline, published: dict[str, Sequence[Published]]
) -> None:
    """Write the state table's rows of all checkpoints: each has read the next record of one partition."""
    past = Past(state, pipeline)
    log = services.sources(pipeline)[TOPIC].log()
    ends = {partition: 0 for partition in log.partitions}
    read_from = [partition for partition, (_, end) in log.partitions.items() for _ in range(end)]
    for number, partition in enumerate(read_from):
        epoch, at = number + 1, FIRST_TIME + timedelta(hours=number)
        spans = {each: (end, end + (each == partition)) for each, end in ends.items()}
        ends[partition] += 1
        past.plan(epoch, at, f"owner-{number}", spans, topic_id=log.topic_id)
        past.claim(epoch, at)
        past.stage(epoch, at, {name: each[number].handle for name, each in published.items()})
        past.decide(epoch, at)
        for name, each in published.items():
            past.publish_with(epoch, at, name, each[number].publication.proof)
        past.commit(epoch, at)
    past.write()
