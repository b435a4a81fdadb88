"""Which records this process takes, and in what form."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from onceonly.spark import small_batch


@dataclass
class Message:
    """As confluent-kafka's."""

    number: int
    content: bytes | None = b"value"
    named: Sequence[tuple[str, bytes | None]] | None = None
    time: tuple[int, int] = (1, 5)

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return self.content

    def headers(self) -> Sequence[tuple[str, bytes | None]] | None:
        return self.named

    def timestamp(self) -> tuple[int, int]:
        return self.time

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self.number % 2

    def offset(self) -> int:
        return self.number


class Odd(Message):
    def headers(self) -> Any:
        return b"\xff".decode()


def test_records_are_in_order_whenever_they_came() -> None:
    table = small_batch._build_table(Message(number) for number in (3, 2, 1, 0))
    assert table is not None
    assert (table.schema, table["offset"].to_pylist()) == (small_batch.RECORD_SCHEMA, [0, 2, 1, 3])


def test_no_records_are_a_table_without_rows() -> None:
    table = small_batch._build_table([])
    assert table is not None
    assert (table.schema, table.num_rows) == (small_batch.RECORD_SCHEMA, 0)


@pytest.mark.parametrize(
    "last",
    [
        Message(1, b"x" * small_batch.MAX_BYTES),
        Message(1, named=[("h", None), ("h", b"x" * small_batch.MAX_BYTES)]),
        Message(1, time=(0, -1)),
        Odd(1),
    ],
)
def test_what_is_large_or_odd_is_left_to_spark(last: Message) -> None:
    assert small_batch._build_table([Message(0), last]) is None


@pytest.mark.parametrize(
    ("max_records", "is_small"),
    [(None, False), (0, True), (small_batch.MAX_RECORDS, True), (small_batch.MAX_RECORDS + 1, False)],
)
def test_a_batch_is_small_if_its_records_are_known_to_be_few(max_records: int | None, is_small: bool) -> None:
    assert small_batch.is_small(max_records) is is_small


def test_an_error_about_too_large_rows_leaves_them_to_spark_and_no_other() -> None:
    class Rows:
        def limit(self, _: int) -> "Rows":
            return self

        def toArrow(self) -> None:
            raise RuntimeError(said)

    said = "is bigger than spark.driver.maxResultSize"
    assert small_batch.collect_small_batch(Rows()) is None
    said = "division by zero"
    with pytest.raises(RuntimeError, match="division"):
        small_batch.collect_small_batch(Rows())
