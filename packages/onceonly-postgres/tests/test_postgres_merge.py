"""Rows merged by key: the newest change of each key is kept, in whatever order changes come."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from arrow_rows import ArrowRows
from codes import raises
from integration.services.postgres import Postgres
from publisher import Publisher
from targets import NumberTable

from onceonly import Merge
from onceonly.errors import InvalidPipeline
from onceonly.sinks import Publication

pytestmark = pytest.mark.integration
Change = tuple[int, int, int | None, str]  # key, two columns that order changes, text


class Merged:
    """A table that is merged by key, in the order of two columns."""

    def __init__(self, port: int, receipts: Path) -> None:
        table = f"merged_{uuid.uuid4().hex[:12]}"
        self.target = NumberTable(port, table, {"merge": Merge(["key"], ["day", "number"])})
        self.target.query(
            f'CREATE TABLE "{table}" (key int PRIMARY KEY, day int NOT NULL, number int NOT NULL, text text)'
        )
        self._publisher = Publisher(self.target, receipts)
        self._last: Publication | None = None

    def publish(self, epoch: int, *partitions: Sequence[Change]) -> None:
        rows = ArrowRows(*map(make_table, partitions))
        self._last = self._publisher.publish(epoch, self._last, rows)

    @property
    def texts(self) -> dict[int, str]:
        return dict(self.target.query(f'SELECT key, text FROM "{self.target.table}"'))


def make_table(changes: Sequence[Change]) -> pa.Table:
    columns = list(zip(*changes, strict=True))
    arrays = [pa.array(values, pa.int32()) for values in columns[:3]] + [pa.array(columns[3], pa.string())]
    return pa.table(arrays, names=["key", "day", "number", "text"])


@pytest.fixture
def merged(database: Postgres, tmp_path: Path) -> Merged:
    return Merged(database.port, tmp_path)


def test_newest_change_of_a_checkpoint_is_kept(merged: Merged) -> None:
    older, newest = (1, 1, 9, "older"), (1, 2, 3, "newest")
    merged.publish(1, [older, newest, (1, 2, 2, "old")])
    assert merged.texts == {1: "newest"}


@pytest.mark.parametrize("first", [0, 1])
def test_newest_change_of_several_partitions_is_kept(merged: Merged, first: int) -> None:
    partitions = [[(1, 2, 3, "newest"), (2, 1, 1, "two")], [(1, 1, 9, "older"), (3, 1, 1, "three")]]
    merged.publish(1, partitions[first], partitions[1 - first])
    assert merged.texts == {1: "newest", 2: "two", 3: "three"}


def test_older_change_of_a_later_checkpoint_changes_nothing(merged: Merged) -> None:
    merged.publish(1, [(1, 2, 3, "newest"), (2, 1, 1, "two")])
    merged.publish(2, [(1, 1, 9, "older"), (2, 1, 2, "two again"), (3, 1, 1, "three")])
    assert merged.texts == {1: "newest", 2: "two again", 3: "three"}


def test_change_without_its_order_is_refused(merged: Merged) -> None:
    with raises(InvalidPipeline, "postgres-row-refused"):
        merged.publish(1, [(1, 1, None, "when?")])
    assert merged.texts == {}
