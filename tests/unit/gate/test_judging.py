"""One judge for every expectation: what it says of rows, and that it says the same however the rows are split."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import gate_examples
import pyarrow as pa
import pytest
from codes import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from onceonly.errors import InvalidPipeline
from onceonly.gate import figures, suites
from onceonly.gate.columns import Column
from onceonly.gate.expectations import Subject, judge
from onceonly.gate.reductions import ExpectationResult, LocalRows, conclude
from onceonly.gate.suites import Suite

pytestmark = pytest.mark.slow

CENTS = pa.array([Decimal("0.01"), Decimal("99.99"), Decimal("5.00"), None], pa.decimal128(10, 2))


def verdict(table: pa.Table, kind: str, **kwargs: Any) -> bool:
    return result(table, kind, **kwargs).ok


def result(table: pa.Table, kind: str, **kwargs: Any) -> ExpectationResult:
    suite = Suite("s.json", "s", ({"type": f"expect_{kind}", "kwargs": kwargs},))
    return judge(Subject(suite, LocalRows(table), False))[0]


def column(values: Sequence[Any], kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({"c": pa.array(values, kind)})


# ---- values are compared as what they are


def test_decimals_are_compared_exactly():
    rows = pa.table({"c": CENTS})
    assert verdict(rows, "column_min_to_be_between", column="c", min_value=0.01)
    assert verdict(rows, "column_max_to_be_between", column="c", max_value=99.99)
    assert verdict(rows, "column_values_to_be_in_set", column="c", value_set=[0.01, 99.99, 5])
    assert not verdict(rows, "column_max_to_be_between", column="c", max_value=Decimal("99.9899999999999999999"))
    assert verdict(rows, "column_mean_to_be_between", column="c", min_value=35, max_value=35)


def test_large_integers_stay_what_they_are():
    rows = column([2**53 + 1])
    assert verdict(rows, "column_values_to_be_between", column="c", min_value=2**53 + 1, max_value=2**53 + 1)
    assert not verdict(rows, "column_values_to_be_in_set", column="c", value_set=[2**53])
    assert not verdict(rows, "column_max_to_be_between", column="c", max_value=2**53)
    assert verdict(rows, "column_sum_to_be_between", column="c", min_value=2**53 + 1)


def test_numbers_of_a_suite_are_read_exactly(tmp_path):
    bound = "123456789012345678.01"
    text = json.dumps({"expectations": [{"type": "expect_column_max_to_be_between", "kwargs": {"column": "c"}}]})
    (tmp_path / "s.json").write_text(text.replace('"c"', f'"c", "max_value": {bound}'))
    suite = suites.load("s.json", tmp_path)
    for value, ok in ((bound, True), ("123456789012345678.02", False)):
        rows = column([Decimal(value)], pa.decimal128(20, 2))
        assert judge(Subject(suite, LocalRows(rows), False))[0].ok is ok


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_floats_are_compared_with_the_nearest(kind):
    rows = column([0.1, 0.3], kind)
    assert verdict(rows, "column_values_to_be_in_set", column="c", value_set=[0.1, 0.3])
    assert verdict(rows, "column_values_to_be_between", column="c", min_value=0.1, max_value=0.3)
    assert verdict(rows, "column_max_to_be_between", column="c", max_value=0.3)


def test_nan_counts_as_null():
    rows = column([1.0] * 199 + [100.0, math.nan])
    assert result(rows, "column_values_to_not_be_null", column="c").observed == "1 of 201 rows"
    assert result(rows, "column_value_z_scores_to_be_less_than", column="c", threshold=3).observed == "1 of 201 rows"
    assert verdict(rows, "column_max_to_be_between", column="c", max_value=100)


def test_dates_and_times_are_compared_as_such():
    rows = gate_examples.table()
    assert verdict(rows, "column_max_to_be_between", column="day", min_value="9999-12-31")
    assert verdict(rows, "column_values_to_be_between", column="day", min_value="0001-01-01")
    assert verdict(rows, "column_values_to_be_between", column="at", min_value="0001-01-01T00:00:00")
    assert verdict(rows, "column_max_to_be_between", column="at", min_value="9999-12-31T00:00:00+00:00")
    assert (
        result(rows, "column_values_to_be_in_set", column="at", value_set=["2026-05-01T14:00:00+02:00"]).observed
        == "3 of 6 rows"
    )
    with raises(InvalidPipeline, "expectation-not-judged", match=r"'local'.*have no zone"):
        verdict(rows, "column_values_to_be_between", column="local", min_value="2026-05-01T00:00:00Z")


@pytest.mark.parametrize(
    ("schema", "text", "fits"),
    [
        ({"multipleOf": 0.01}, "19.99", True),
        ({"multipleOf": Decimal("0.01")}, "19.99", True),
        ({"multipleOf": 0.01}, "19.991", False),
        ({"maximum": 9007199254740992}, "9007199254740993", False),
        ({"const": 9007199254740993}, "9007199254740992", False),
        ({"exclusiveMinimum": 0.1}, "0.1000000000000000000001", True),
        ({"enum": [0.1]}, "0.1000000000000000000001", False),
        ({"type": "integer"}, "1e3", True),
        ({"type": "number"}, "1e400", True),
        ({"pattern": r"^\d+$"}, '"1\\n"', False),
        ({"type": "number"}, "NaN", False),
        ({"type": "object"}, "{", False),
        (True, "1", True),
        ({"type": "string"}, '"\\ud83d"', False),
    ],
)
def test_json_schemas_are_judged_exactly(schema, text, fits):
    assert verdict(column([text]), "column_values_to_match_json_schema", column="c", json_schema=schema) is fits


@pytest.mark.parametrize("schema", [{"type": "nothing"}, {"pattern": "("}, {"$ref": "#/no"}, 1, None])
def test_what_is_no_json_schema_is_refused(schema):
    with raises(InvalidPipeline, "expectation-not-judged"):
        verdict(column(["1"]), "column_values_to_match_json_schema", column="c", json_schema=schema)


def test_text_that_is_not_utf_8_leaves_other_text_as_it_is():
    texts = pa.array([b"\xff", b"", None, b"ab"], pa.binary()).view(pa.string())
    rows = pa.table({"c": texts})
    assert verdict(rows, "column_values_to_be_in_set", column="c", value_set=["\ufffd", "", "ab"])
    assert verdict(rows, "column_value_lengths_to_be_between", column="c", max_value=2)


def test_a_figure_of_no_values_meets_no_bound():
    for rows in (column([], pa.float64()), column([None, math.nan], pa.float64())):
        for figure in ("min", "max", "mean", "median", "stdev"):
            assert not verdict(rows, f"column_{figure}_to_be_between", column="c", min_value=0)
        assert verdict(rows, "column_sum_to_be_between", column="c", min_value=0, max_value=0)
        assert verdict(rows, "column_values_to_be_between", column="c", min_value=5)


@pytest.mark.parametrize(
    ("value_set", "ties_okay", "ok"),
    [(["a", "b"], None, True), (["a"], None, False), (["a"], True, True), (["c"], True, False), ([], None, False)],
)
def test_of_several_most_common_values_all_have_to_be_in_the_set(value_set, ties_okay, ok):
    rows = column(["a", "a", "b", "b", "c"])
    arguments = {"column": "c", "value_set": value_set, "ties_okay": ties_okay}
    assert verdict(rows, "column_most_common_value_to_be_in_set", **arguments) is ok


def test_quantiles_are_judged():
    rows, ranges = column(list(range(5))), {"quantiles": [0.5, 1], "value_ranges": [[2, 2], [None, 4]]}
    found = result(rows, "column_quantile_values_to_be_between", column="c", quantile_ranges=ranges)
    assert (found.ok, found.observed) == (True, "2, 4")
    ranges["value_ranges"][0] = [3, None]
    assert not verdict(rows, "column_quantile_values_to_be_between", column="c", quantile_ranges=ranges)


CONDITIONS = [
    ("k == 'b'", 2),
    ("not k == 'b'", 1),
    ("k != 'b' and n > 0", 0),
    ("k in ['a', 'b'] or n.isnull()", 4),
    ("0 < n <= 2", 2),
    ("n < m", 1),
    ('col("k").notNull()', 3),
    ("`n` >= 0.5", 2),
    ({"type": "comparison", "column": {"name": "n"}, "operator": "IN", "parameter": [1, 2]}, 2),
    ({"type": "comparison", "column": {"name": "n"}, "operator": "!=", "parameter": 1}, 1),
    ({"type": "nullity", "column": {"name": "k"}, "is_null": True}, 1),
    ({"type": "and", "conditions": [{"type": "nullity", "column": {"name": "k"}, "is_null": False}]}, 3),
]


@pytest.mark.parametrize(("condition", "rows"), CONDITIONS)
def test_a_condition_selects_rows(condition, rows):
    table = pa.table({"k": ["a", "b", "b", None], "n": [None, 1, 2, None], "m": [5, 2, 1, 1]})
    assert verdict(table, "table_row_count_to_equal", value=rows, row_condition=condition, condition_parser="pandas")


@pytest.mark.parametrize("condition", ["k = 'b'", "k.str.len() > 1", "k == 5", "x == 1", "n > 'a'", "k LIKE 'a%'"])
def test_a_condition_without_one_meaning_is_refused(condition):
    table = pa.table({"k": ["a"], "n": [1]})
    with raises(InvalidPipeline, "expectation-not-judged") as refused:
        verdict(table, "table_row_count_to_equal", value=1, row_condition=condition)
    assert refused.value.code == "expectation-not-judged"


REFUSED = [
    ("unexpected_rows_expectation", {"unexpected_rows_query": "SELECT 1"}),
    ("expect_column_values_to_be_increasing", {"column": "c"}),
    ("expect_nonsense", {}),
    ("expect_column_values_to_match_regex", {"column": "c", "regex": "("}),
    ("expect_column_values_to_be_of_type", {"column": "c", "type_": "int64"}),
    ("expect_column_values_to_be_between", {"column": "c"}),
    ("expect_column_values_to_be_in_set", {"column": "c", "value_set": [None]}),
    ("expect_column_mean_to_be_between", {"column": "c", "min_value": "many"}),
    ("expect_column_values_to_be_in_set", {"column": "c", "value_set": {"$PARAMETER": "x"}}),
]


@pytest.mark.parametrize(("kind", "kwargs"), REFUSED)
def test_what_cannot_be_judged_is_refused_by_name(kind, kwargs):
    """Before any column is known, as `check` does."""
    with raises(InvalidPipeline, "expectation-not-judged", match=kind) as refused:
        Suite("s.json", "s", ({"type": kind, "kwargs": kwargs},)).starts(None)
    assert refused.value.code == "expectation-not-judged"


# ---- every expectation on every type


@pytest.mark.parametrize("name", gate_examples.COLUMNS)
@pytest.mark.parametrize("rows", ["all", "nulls", "none"])
def test_any_split_of_the_rows_has_one_verdict(name, rows):
    """Each expectation is judged or refused; whole, row by row, and in another order."""
    whole = gate_examples.table(rows)
    order = list(range(whole.num_rows))
    random.Random(name).shuffle(order)
    shuffled = pa.concat_tables([whole.schema.empty_table(), *(whole.slice(row, 1) for row in order)])
    judged = 0
    for expectation in gate_examples.expectations(name):
        suite = Suite("s.json", "s", (expectation,))
        try:
            [found] = judge(Subject(suite, LocalRows(whole), False))
        except InvalidPipeline as error:
            assert (error.code, expectation["type"] in error.why) == ("expectation-not-judged", True)
            continue
        assert judge(Subject(suite, LocalRows(shuffled), False)) == [found], expectation
        json.dumps(found.details, allow_nan=False)
        judged += 1
    assert judged >= 20


def test_every_expectation_that_ships_is_known():
    import great_expectations  # noqa: F401
    from great_expectations.expectations.registry import list_registered_expectation_implementations

    assert {*suites.RULES, *suites.WHY_NOT_JUDGED} == set(list_registered_expectation_implementations())


# ---- figures


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=30), st.integers(0, 30))
def test_sums_of_floats_are_exact(values, split):
    chunks = pa.chunked_array([pa.array(part, pa.float64()) for part in (values[:split], values[split:])])
    [moments] = conclude(LocalRows(pa.table({"c": chunks})), [figures.find_moments(Column("c", "double"), None)])
    assert moments.total == sum(map(Fraction, values), Fraction())
    assert moments.squares == sum((Fraction(value) ** 2 for value in values), Fraction())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-50, 50), min_size=2, max_size=40))
def test_deviation_and_median_are_those_of_the_textbook(values):
    rows = column(values)
    deviation = statistics.stdev(map(Fraction, values))
    assert verdict(
        rows, "column_stdev_to_be_between", column="c", min_value=deviation - 1e-9, max_value=deviation + 1e-9
    )
    middle = statistics.median(values)
    assert verdict(rows, "column_median_to_be_between", column="c", min_value=middle, max_value=middle)


def test_ranks_of_many_values_are_exact():
    """More than are kept at once: by pivots, in several passes."""
    values = list(range(70_000)) + [7] * 1_000
    random.Random(1).shuffle(values)
    ordered = sorted(values)
    ranks = [0, 5, 7, 1_005, len(values) // 2, len(values) - 1]
    [found] = conclude(
        LocalRows(column(values)), [figures.find_by_rank(Column("c", "long"), None, lambda count: ranks)]
    )
    assert found == [ordered[rank] for rank in ranks]
