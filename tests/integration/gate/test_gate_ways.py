"""Both ways of judging, in process and on Spark's workers, say the same of the same rows."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import gate_examples
import pytest

from onceonly.errors import InvalidPipeline
from onceonly.gate.columns import by_name
from onceonly.gate.expectations import Subject, judge
from onceonly.gate.reductions import LocalRows, ReducedRows, SparkRows
from onceonly.gate.suites import RULES, Suite

pytestmark = [pytest.mark.integration]


def frame(spark: Any, rows: str) -> Any:
    table = gate_examples.table(rows)
    made = spark.createDataFrame(table if table else gate_examples.table("all")).limit(len(table)).repartition(3)
    for name in ("local", "other_local"):  # otherwise Spark takes a time without a zone for one with a zone
        made = made.withColumn(name, made[name].cast("timestamp_ntz"))
    return made


def refusal(expectation: dict[str, Any], rows: ReducedRows) -> str:
    try:
        Suite("s.json", "s", (expectation,)).starts(by_name(rows.columns))
    except InvalidPipeline as error:
        assert error.code == "expectation-not-judged"
        return error.why
    return ""


def compare(spark: Any, rows: str, expectations: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Judge those in both ways; return the ones that are judged at all."""
    here, there = LocalRows(gate_examples.table(rows)), SparkRows(frame(spark, rows))
    assert there.columns == here.columns
    judged = []
    for expectation in expectations:
        refused = refusal(expectation, here)
        assert refusal(expectation, there) == refused
        if not refused:
            judged.append(expectation)
    suite = Suite("s.json", "s", tuple(judged))
    results = zip(judged, *(judge(Subject(suite, each, False)) for each in (here, there)), strict=True)
    assert [(expectation, a, b) for expectation, a, b in results if a != b] == []
    return judged


def every() -> Iterator[dict[str, Any]]:
    for name in gate_examples.COLUMNS:
        yield from gate_examples.expectations(name)


def one_of_each_kind() -> list[dict[str, Any]]:
    """On any column on which it can be judged."""
    chance, here = random.Random(7), LocalRows(gate_examples.table())
    found: dict[str, dict[str, Any]] = {}
    for expectation in chance.sample(all_ := list(every()), len(all_)):
        if expectation["type"] not in found and not refusal(expectation, here):
            found[expectation["type"]] = expectation
    return list(found.values())


def test_an_expectation_of_each_kind_has_one_verdict(spark: Any) -> None:
    judged = compare(spark, "all", one_of_each_kind())
    assert {expectation["type"] for expectation in judged} == set(RULES)


@pytest.mark.heavy
@pytest.mark.parametrize("rows", ["all", "nulls", "none"])
def test_every_pair_has_one_verdict(spark: Any, rows: str) -> None:
    assert len(compare(spark, rows, every())) > 1_500
