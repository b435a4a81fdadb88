"""Both ways of judging, in process and on Spark's workers, say the same of the same rows."""

from __future__ import annotations

import random
from typing import Any

import gate_examples
import pytest

from onceonly.errors import InvalidPipeline
from onceonly.gate.columns import by_name
from onceonly.gate.expectations import Subject, judge
from onceonly.gate.reductions import LocalRows, Rows, SparkRows
from onceonly.gate.suites import Suite

pytestmark = [pytest.mark.integration]


def frame(spark: Any, rows: str) -> Any:
    made = spark.createDataFrame(gate_examples.table(rows)).repartition(3)
    for name in ("local", "other_local"):  # otherwise Spark takes a time without a zone for one with a zone
        made = made.withColumn(name, made[name].cast("timestamp_ntz"))
    return made


def refusal(expectation: dict[str, Any], rows: Rows) -> str:
    try:
        Suite("s.json", "s", (expectation,)).starts(by_name(rows.columns))
    except InvalidPipeline as error:
        assert error.code == "expectation-not-judged"
        return error.why
    return ""


def compare(spark: Any, rows: str, share: float) -> int:
    """Judge that share of all pairs of an expectation and a column in both ways; return their number."""
    here, there = LocalRows(gate_examples.table(rows)), SparkRows(frame(spark, rows))
    assert there.columns == here.columns
    chance = random.Random(rows)
    judged = []
    for name in gate_examples.COLUMNS:
        for expectation in gate_examples.expectations(name):
            if chance.random() >= share:
                continue
            refused = refusal(expectation, here)
            assert refusal(expectation, there) == refused
            if not refused:
                judged.append(expectation)
    suite = Suite("s.json", "s", tuple(judged))
    results = zip(judged, *(judge(Subject(suite, each, False)) for each in (here, there)), strict=True)
    assert [(expectation, a, b) for expectation, a, b in results if a != b] == []
    return len(judged)


def test_a_sample_of_pairs_has_one_verdict(spark: Any) -> None:
    assert compare(spark, "all", 0.02) > 15


@pytest.mark.heavy
@pytest.mark.parametrize("rows", ["all", "nulls", "none"])
def test_every_pair_has_one_verdict(spark: Any, rows: str) -> None:
    assert compare(spark, rows, 1) > 1_500
