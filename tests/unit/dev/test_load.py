"""The example's flights: what is encoded, when they are, in which order."""

from __future__ import annotations

import io
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from codes import raises
from fastavro import parse_schema, schemaless_reader

from onceonly.checkpoint.offsets import Interval
from onceonly.dev.demo import flights
from onceonly.errors import InvalidPipeline

PROJECT = Path(__file__).parents[3]
SCHEMA = flights.read_schema(PROJECT)
NEW_YORK = ZoneInfo("America/New_York")


@pytest.fixture(scope="module")
def year() -> pa.Table:
    return flights.table(SCHEMA)


def test_the_year_is_whole(year: pa.Table) -> None:
    assert year.num_rows == 336_776
    assert year["dep_time"].null_count == 8_255
    assert year["tailnum"].null_count == 2_512


def test_the_time_of_a_flight_is_its_scheduled_local_hour_in_utc(year: pa.Table) -> None:
    columns = ["year", "month", "day", "hour", "time_hour"]
    hours = year.group_by(columns).aggregate([]).select(columns)  # each once: there are 7,000 of them
    told = [tuple(row.values()) for row in hours.to_pylist()]
    assert all(datetime(*local, tzinfo=NEW_YORK).astimezone(UTC) == at for *local, at in told)
    assert len(told) == len({tuple(local) for *local, _ in told}) > 6_000


def test_flights_come_in_order_of_time_and_always_in_the_same(year: pa.Table) -> None:
    times = year["time_hour"].combine_chunks()
    assert pc.all(pc.less_equal(times[:-1], times[1:])).as_py()
    assert year.equals(flights.table(SCHEMA))


@pytest.mark.slow
def test_periods_are_slices_of_the_year(year: pa.Table) -> None:
    january, february = (flights.table(SCHEMA, flights.month_period(text)) for text in ("2013-01", "2013-02"))
    assert pa.concat_tables([january, february]).equals(year.slice(0, january.num_rows + february.num_rows))
    assert flights.table(SCHEMA, flights.period_until("2013-01-31")).equals(january)
    assert flights.table(SCHEMA, flights.period_until("2013-12-31")).num_rows == year.num_rows - 88  # New Year's Eve


def test_avro_gives_back_what_went_in(year: pa.Table) -> None:
    encode, parsed = flights.encoder(SCHEMA), parse_schema(SCHEMA)
    some = pa.concat_tables([year.slice(0, 200), year.filter(pc.is_null(year["tailnum"])).slice(0, 50)])
    for record, original in zip(flights.records(some), some.to_pylist(), strict=True):
        assert schemaless_reader(io.BytesIO(encode(record)), parsed, None) == original
        assert datetime.fromtimestamp(record["time_hour"] / 1000, UTC) == original["time_hour"]


def test_carriers_are_spread_over_the_partitions(year: pa.Table) -> None:
    carriers = Counter(flights.partition(carrier, 4) for carrier in set(year["carrier"].to_pylist()))
    assert set(carriers) == {0, 1, 2, 3}
    # crc32, as librdkafka's 'consistent' partitioner: never to change
    assert [flights.partition(carrier, 4) for carrier in ("UA", "B6", "EV", "WN")] == [0, 1, 2, 3]


@pytest.mark.parametrize("text", ["2013-13", "January", "2014-02", "2012-12", ""])
def test_a_month_that_is_none_is_refused(text: str) -> None:
    with raises(InvalidPipeline, "option-invalid"):
        flights.month_period(text)


@pytest.mark.parametrize("text", ["2013-02-30", "tomorrow", "2012-12-31"])
def test_a_day_that_is_none_is_refused(text: str) -> None:
    with raises(InvalidPipeline, "option-invalid"):
        flights.period_until(text)


def test_a_month_ends_where_the_next_begins() -> None:
    ends = [flights.month_period(f"2013-{month:02}").end for month in range(1, 13)]
    starts = [flights.month_period(f"2013-{month:02}").start for month in range(1, 13)]
    assert ends[:-1] == starts[1:]
    assert flights.month_period("2013-02") == Interval(
        datetime(2013, 2, 1, tzinfo=UTC), datetime(2013, 3, 1, tzinfo=UTC)
    )
    assert flights.period_until("2013-01-01").end - flights.FIRST == timedelta(days=1)


def test_away_from_the_project_it_says_where_to_go(tmp_path: Path) -> None:
    with raises(InvalidPipeline, "demo-outside-checkout"):
        flights.read_schema(tmp_path)
