"""The bound of bad records, and what is counted of them: Spark's part is replaced by numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from codes import raises

from onceonly.errors import BadRecord, InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import transforms
from onceonly.runtime.bad_records import BadRecords
from onceonly.spark import decode_results

AT: Any = SimpleNamespace(pipeline="orders", epoch=3, owner="cli:x", interval=None)
DEAD = DeltaSink("dead", "dead")


class Rows:
    """A DataFrame, as far as it is looked at here."""

    write = schema = None

    def __init__(self, all: int = 0, bad: int = 0, columns: tuple[str, ...] = ()) -> None:
        self.all, self.bad, self.columns = all, bad, list(columns)

    def count(self) -> int:
        return self.all

    def unionByName(self, other: Rows) -> Rows:
        return Rows(self.all + other.all)

    def orderBy(self, *_: str) -> Rows:
        return self

    def first(self) -> dict[str, Any] | None:
        return {"topic": "orders", "partition": 1, "offset": 7, "error": "Why not."} if self.all else None

    def limit(self, _: int) -> Rows:
        return Rows()

    def selectExpr(self, *_: str) -> Rows:
        return self


@pytest.fixture(autouse=True)
def _numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_results, "count_failures", lambda rows: {("orders", 0): (rows.all, rows.bad)})
    monkeypatch.setattr(decode_results, "select_decoded", lambda rows: Rows(rows.all - rows.bad))
    monkeypatch.setattr(decode_results, "select_failed", lambda rows: Rows(rows.bad))
    monkeypatch.setattr(decode_results, "find_rejected_records", lambda letters, read, bad: letters)
    monkeypatch.setattr(decode_results, "to_letters", lambda letters: letters)
    monkeypatch.setattr(
        decode_results,
        "find_unknown_record",
        lambda letters: {"topic": "o", "partition": 0, "offset": 1} if letters.bad else None,
    )


def pipeline(policy: Any = "dead_letter", **more: Any) -> Pipeline:
    sources = [KafkaSource("orders", "json", "a.ddl", on_bad_record=policy), KafkaSource("plain")]
    given = {"dead_letters": DEAD, **more}
    return Pipeline(name="orders", source=sources, transform="a:b", sinks=[DeltaSink("lake", "lake")], **given)


def read(made: Pipeline, all: int = 100, bad: int = 3) -> BadRecords:
    found = BadRecords(made)
    assert found.sets_apart("orders") and not found.sets_apart("plain")
    assert found.select_decoded("orders", Rows(all, bad)).count() == all - bad
    found.count_records("plain", Rows(all))
    return found


def test_all_topics_count_and_the_bad_ones_of_each() -> None:
    found = read(pipeline())
    found.check(AT)
    assert found.count_partition("orders", 0) == [100, 97, 3, 0]
    assert (found.has_counted("orders"), found.has_counted("plain")) == (True, False)
    assert found.tally() == {"records": 200, "undecoded": {"orders": 3}, "rejected": 0}


@pytest.mark.parametrize(("most", "fails"), [(3, False), (2, True), (0.015, False), (0.014, True)])
def test_a_bound_is_of_all_records_that_were_read(most: float, fails: bool) -> None:
    found = read(pipeline(max_bad=most))
    if not fails:
        return found.check(AT)
    with pytest.raises(BadRecord) as refused:
        found.check(AT)
    assert refused.value.what == "orders epoch 3: 3 of 200 records are bad."
    assert "topic 'orders' partition 1 offset 7. Why not." in refused.value.why
    assert refused.value.exit_code == 1


def test_what_is_dropped_is_bounded_too() -> None:
    with pytest.raises(BadRecord):
        read(pipeline("drop", dead_letters=None, max_bad=2)).check(AT)
    dropping = read(pipeline("drop", dead_letters=None))
    assert dropping.count_partition("orders", 0) == [100, 97, 3, 3]


NAMED = ("topic", "partition", "offset", "error")


def test_what_the_transform_names_counts_too() -> None:
    found = read(pipeline(max_bad=4))
    found.check(AT)
    rows = found.make_dead_letters(Rows(2, columns=NAMED), lambda _: Rows(100), lambda rows: rows)
    assert rows.count() == 3 + 2
    assert found.tally()["rejected"] == 2
    with raises(BadRecord, "too-many-bad-records", match="5 of 200 records"):
        found.check(AT)


def test_what_is_dropped_is_no_dead_letter() -> None:
    found = read(pipeline("drop"))
    assert found.make_dead_letters(None, lambda _: Rows(100), lambda rows: rows).count() == 0
    assert found.tally()["undecoded"] == {"orders": 3}


def test_a_name_of_no_record_is_refused() -> None:
    with raises(InvalidPipeline, "dead-letters-invalid", match="topic 'o' partition 0 offset 1"):
        read(pipeline()).make_dead_letters(Rows(1, 1, NAMED), lambda _: Rows(100), lambda rows: rows)


@pytest.mark.parametrize("columns", [NAMED[:3], (*NAMED, "value")])
def test_other_columns_are_refused(columns: tuple[str, ...]) -> None:
    with raises(InvalidPipeline, "dead-letters-invalid", match="Select topic, partition, offset, error"):
        read(pipeline()).make_dead_letters(Rows(1, columns=columns), lambda _: Rows(100), lambda rows: rows)


def test_a_pipeline_that_fails_on_them_counts_nothing() -> None:
    plain = Pipeline(name="o", source=KafkaSource("orders"), transform="a:b", sinks=[DEAD])
    assert BadRecords(plain).tally() == {}


def test_a_single_dataframe_is_for_every_sink_but_that_of_dead_letters() -> None:
    made, rows, letters = pipeline(), Rows(), Rows()
    assert transforms.select_outputs(made, rows) == {"lake": rows}
    assert transforms.select_outputs(made, {"lake": rows, "dead": letters}) == {"lake": rows, "dead": letters}
