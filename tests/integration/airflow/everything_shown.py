"""A state table in which every state that the pages show is there, with real topics behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from integration.projects.past import SECOND, Past
from integration.readers.kafka_reader import create_topic
from patience import PATIENCE

from onceonly.checkpoint.model import Event
from onceonly.checkpoint.offsets import Interval, TopicRange
from onceonly.gate import docs
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.gate import Gate
from onceonly.pipeline.sinks import DeltaSink, KafkaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime.owners import airflow_owner
from onceonly.statetable.table import StateTable

NOW = datetime.now(UTC).replace(microsecond=0)
HOUR = timedelta(hours=1)
FIRST = NOW.replace(minute=0, second=0) - 24 * HOUR
GATE = Gate(suites={"delays": "schemas/delays.expectations.json"}, max_rows={"delays": 10_000}, on_fail="hold")
CHECKS = [
    {"what": "at most 10,000 rows", "ok": True, "severity": "critical", "observed": "4,211 rows"},
    {
        "what": "expect_column_values_to_not_be_null(column=carrier)",
        "ok": False,
        "severity": "critical",
        "observed": "37 of 4,211 rows",
    },
    {
        "what": "expect_column_values_to_be_between(column=delay, min_value=-60, max_value=1440)",
        "ok": False,
        "severity": "warning",
        "observed": "2 of 4,211 rows",
    },
]
HELD, COMMITTING, DOUBTFUL, ABORTED, REPLACED, REPLACING, PASSED = 14, 11, 12, 9, 6, 15, 8
BAD, SKIPPED = 7, 8  # of the orders
MISSING, FOUND, UNFIT, REFUSED = 2, 3, 4, 6  # of the invoices


class Everything:
    """By intervals, with all states; chained, with a rewind; up to date; and one whose target went back."""

    def __init__(self, state: StateTable, broker: str, home: Path) -> None:
        self._state, self._broker, self._docs = state, broker, home / "docs"

    def write(self) -> None:
        for past in (self._delays(), self._orders(), self._totals(), self._invoices()):
            past.write()

    def _pipeline(self, name: str, topic: str, **more: Any) -> Pipeline:
        sinks = [
            DeltaSink("delays", path=f"lake/{name}"),
            KafkaSink(name="late", topic="late-flights", mode="staged", unordered=True),
        ]
        defaults = {"name": name, "source": KafkaSource(topic), "transform": f"jobs.{name}:clean", "sinks": sinks}
        return Pipeline(**{**defaults, **more})

    def _delays(self) -> Past:
        past = Past(self._state, self._pipeline("flights_daily", "flights", mode="interval", gate=GATE))
        topic_id = self._topic("flights", 40)
        for epoch in range(1, REPLACING + 1):
            self._interval(past, epoch, topic_id)
        return past

    def _interval(self, past: Past, epoch: int, topic_id: str) -> None:
        hour = REPLACED if epoch == REPLACING else epoch + (2 if epoch > 4 else 0)  # two hours are covered by none
        start, at = FIRST + hour * HOUR, FIRST + (epoch + 4) * HOUR
        interval, owner = (
            Interval(start, start + HOUR),
            airflow_owner("flights_daily", f"scheduled__{start:%Y-%m-%dT%H}"),
        )
        if epoch == REPLACING:
            known = past.known(REPLACED)
            ranges = [range_.to_json() for range_ in known.ranges]
            body = {"definition": past.pipeline.to_json(), "ranges": ranges, "replaces": REPLACED, "request": "a run"}
            past.add(epoch, Event.PLANNED, at, owner=owner, interval=known.interval, body=body)
        else:
            past.plan(epoch, at, owner, {0: (epoch, epoch + 1), 1: (2 * epoch, 2 * epoch + 2)}, interval, topic_id)
        if epoch == REPLACING - 2:
            return  # planned, and no more
        past.claim(epoch, at + SECOND)
        past.stage(epoch, at + 41 * SECOND, handles(3_800 + 411 * epoch % 700, 23 + epoch % 5, at))
        self._end(past, epoch, at + 44 * SECOND)

    def _end(self, past: Past, epoch: int, at: datetime) -> None:
        if epoch == 10:
            return  # staged, and its gate was not asked yet
        self._judge(past, epoch, at, failed=epoch in (HELD, ABORTED))
        if epoch == HELD:
            return
        if epoch == ABORTED:
            return past.abort(epoch, at + HOUR / 2, "task 'gate' failed in Airflow: 37 of 4,211 rows have no carrier")
        past.decide(epoch, at + SECOND)
        if epoch == DOUBTFUL:
            past.publish(epoch, at + 2 * SECOND, "delays")
            why = "the log of 'late-flights' was truncated: nothing shows whether its transaction was committed"
            return past.add(epoch, Event.IN_DOUBT, at + 3 * SECOND, sink="late", body={"why": why})
        if epoch == COMMITTING:
            return past.publish(epoch, at + 2 * SECOND, "late")
        if epoch == PASSED:  # its transaction is opened when it is published, or has timed out
            new = {"handle": {**past.known(epoch).handles["late"], "opened_at": at.isoformat()}}
            past.add(epoch, Event.REPLACED, at + 2 * SECOND, sink="late", body=new)
        past.publish(epoch, at + 2 * SECOND, "delays", "late")
        past.commit(epoch, at + 3 * SECOND)

    def _judge(self, past: Past, epoch: int, at: datetime, failed: bool) -> None:
        checks = CHECKS if failed else [{**check, "ok": True, "observed": "0 of 4,211 rows"} for check in CHECKS]
        folder = f"{self._docs}/flights_daily/{epoch}-1-{epoch:012x}"
        page = "<html><head></head><body><h1>What Great Expectations has found</h1></body></html>"
        index = docs.write_pages(folder, f"flights_daily epoch {epoch} attempt 1", {"delays": checks}, {"delays": page})
        sinks = {"delays": {"rows": 4_211, "path": "in process", "checks": checks}}
        body = {"outcome": "failed" if failed else "passed", "sinks": sinks, "docs": index, "by": "recovery"}
        past.add(epoch, Event.VERDICT, at, body=body)

    def _orders(self) -> Past:
        """Five, of which the last two are taken back; one with bad records; and offsets that are left out."""
        past = Past(self._state, self._pipeline("orders", "orders"))
        topic_id = self._topic("orders", 60)
        for epoch in range(1, 6):
            self._chained(past, epoch, {0: (10 * epoch - 10, 10 * epoch)}, topic_id)
        target = past.known(3)
        ends = [replace(range_, partitions={0: (30, 30)}).to_json() for range_ in target.ranges]
        body = {"definition": past.pipeline.to_json(), "ranges": ends, "handles": handles(0, 0, NOW), "to": 3}
        at = NOW - HOUR
        past.add(6, Event.REWOUND, at, owner="ann", decision=6, body=body | {"reason": "wrong exchange rates"})
        past.publish(6, at + SECOND, "delays", "late")
        past.commit(6, at + 2 * SECOND)
        bad = {"records": 20, "undecoded": {"orders": 3}, "rejected": 1}
        self._chained(past, BAD, {0: (30, 50)}, topic_id, bad=bad)
        skipped = [TopicRange("orders", topic_id, {0: (50, 55)}).to_json()]
        left_out = {"definition": past.pipeline.to_json(), "ranges": skipped, "skipped": "written by a broken producer"}
        past.add(SKIPPED, Event.EMPTY, NOW - HOUR / 4, owner="ann", body=left_out)
        return past

    def _totals(self) -> Past:
        """Up to date, and what it has published is all that there is."""
        past = Past(self._state, replace(self._pipeline("carriers", "carriers"), sinks=(DeltaSink("out", path="out"),)))
        topic_id = self._topic("carriers", 20)
        self._chained(past, 1, {0: (0, 20)}, topic_id, {"out": delta(20)})
        return past

    def _invoices(self) -> Past:
        """What rehearsals refuse, and what a target lacks."""
        gate = Gate(min_rows={"delays": 1}, on_fail="hold")
        past = Past(self._state, self._pipeline("invoices", "invoices", mode="interval", gate=gate))
        topic_id = self._topic("invoices", 20)
        for epoch in range(1, REFUSED + 1):
            start, at = FIRST + epoch * HOUR, FIRST + (epoch + 8) * HOUR
            owner = airflow_owner("invoices", f"scheduled__{start:%Y-%m-%dT%H}")
            past.plan(epoch, at, owner, {0: (epoch, epoch + 1)}, Interval(start, start + HOUR), topic_id)
            past.claim(epoch, at + SECOND)
            past.stage(epoch, at + 41 * SECOND, handles(4_211, 23, at))
            self._judge(past, epoch, at + 42 * SECOND, failed=epoch in (UNFIT, REFUSED))
            if epoch in (UNFIT, REFUSED):
                past.add(epoch, Event.APPROVED, at + HOUR, body={"who": "ann", "reason": "a quiet day"})
                self._rehearse(past, epoch, at + HOUR + SECOND)
                continue
            past.decide(epoch, at + 43 * SECOND)
            past.publish(epoch, at + 44 * SECOND, "delays", "late")
            past.commit(epoch, at + 45 * SECOND)
        said = {"who": "ann", "reason": "the lake is from Monday's copy"}
        for number, epoch in enumerate((MISSING, FOUND)):
            past.add(epoch, Event.MISSING, NOW - HOUR + number * SECOND, sink="delays", body={**said, "rows": 4_211})
        past.add(FOUND, Event.FOUND, NOW - HOUR / 2, sink="delays", body={**said, "reason": "Tuesday's was found"})
        return past

    def _rehearse(self, past: Past, epoch: int, at: datetime) -> None:
        if epoch == UNFIT:
            why = (
                "attempt 1 could not be published to sink 'delays' any more: sink 'delays': staged files are missing "
                "in /srv/onceonly/lake/invoices. 2 of 6 files of staged-1 are missing, or have another size. A VACUUM "
                "deletes files that were not published within its retention. The approval by ann ended with it."
            )
            body = {"reason": why, "unfit": {"sink": "delays", "code": "staged-files-missing"}}
            past.add(epoch, Event.ABORTING, at, body=body)
            return past.add(epoch, Event.ABORTED, at + SECOND)
        body = {
            "code": "target-missing",
            "what": f"invoices epoch {epoch} was not published: sink 'late' waits for a person to act.",
            "why": "sink 'late': there is no topic 'late-flights'. The rows were staged for it, so it was deleted "
            "since, or the cluster has lost it.",
            "todo": "Create it again (kafka-topics --create); the rows are then staged again. If it shall not exist "
            f"any more: onceonly abort invoices {epoch} --reason …. Nothing was decided, and it stays staged. When "
            "that is done: onceonly recover invoices",
        }
        return past.add(epoch, Event.REFUSED, at, sink="late", body=body)

    def _chained(
        self,
        past: Past,
        epoch: int,
        spans: Mapping[int, tuple[int, int]],
        topic_id: str,
        staged: Any = None,
        bad: Mapping[str, Any] | None = None,
    ) -> None:
        at, rows = NOW - (9 - epoch) * HOUR / 2, sum(end - start for start, end in spans.values())
        past.plan(epoch, at, f"cli:laptop:{4_000 + epoch}:1", spans, topic_id=topic_id)
        past.claim(epoch, at + SECOND)
        found = staged or handles(rows, rows // 3, at)
        past.stage(epoch, at + (5 + epoch) * SECOND, found, bad)
        past.decide(epoch, at + (6 + epoch) * SECOND)
        past.publish(epoch, at + (7 + epoch) * SECOND, *found)
        past.commit(epoch, at + (8 + epoch) * SECOND)

    def _topic(self, name: str, records: int) -> str:
        """Its id."""
        create_topic(self._broker, name, 2)
        producer = Producer({"bootstrap.servers": self._broker})
        for number in range(records):
            producer.produce(name, str(number).encode(), partition=0)
        assert producer.flush(PATIENCE) == 0
        admin = AdminClient({"bootstrap.servers": self._broker})
        return str(admin.describe_topics(TopicCollection([name]))[name].result().topic_id)


def delta(rows: int) -> dict[str, Any]:
    return {"kind": "delta", "uri": "/srv/onceonly/lake/delays", "files": 6, "rows": rows, "bytes": rows * 117}


def handles(rows: int, late: int, at: datetime) -> dict[str, Any]:
    """What the two sinks would have staged."""
    tx = {"id": "a-transaction", "producer_id": 4711, "epoch": 0, "partitions": [["late-flights", 0, 0, late]]}
    parts = [{"spool": "0.parquet", "rows": late, "tx": tx}]
    opened = {"opened_at": at.isoformat(), "timeout": 86_400}
    kafka = {"kind": "kafka", "mode": "staged", "rows": late, "bytes": 90 * late, "parts": parts} | opened
    return {"delays": delta(rows), "late": {**kafka, "topics": {"late-flights": "an-id"}}}
