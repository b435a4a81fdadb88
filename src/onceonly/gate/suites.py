"""Expectation suites: JSON files, read and checked without Great Expectations, whose import takes 3 s."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline
from onceonly.gate import column_rules, row_rules, table_rules
from onceonly.gate.arguments import Arguments
from onceonly.gate.columns import Column, Unjudgeable, WrongKind
from onceonly.gate.conditions import list_columns
from onceonly.gate.row_rules import Start

SEVERITIES = ("critical", "warning", "info")


@dataclass(frozen=True)
class Suite:
    """A file of expectations: {"name": …, "expectations": [{"type": …, "kwargs": {…}, "severity": …}]}.

    Its numbers are as they are written: integers, and Decimals for those with a fraction.
    """

    path: str
    name: str
    expectations: tuple[Mapping[str, Any], ...]

    @property
    def columns(self) -> list[str]:
        """The columns that the expectations name, in order, each once."""
        names: dict[str, None] = {}  # an ordered set
        for expectation in self.expectations:
            names |= dict.fromkeys(_columns_of(expectation))
        return list(names)

    def starts(self, columns: Mapping[str, Column] | None) -> list[Start]:
        """Return how each expectation is judged.

        Args:
            columns: those of the rows; None: they are not known, and there are no rows.
        Raises:
            InvalidPipeline: one of them cannot be judged, or not on these columns.
        """
        return [self._start_of(number, columns) for number in range(len(self.expectations))]

    def _start_of(self, number: int, columns: Mapping[str, Column] | None) -> Start:
        expectation = self.expectations[number]
        try:
            if columns is None:
                return start_on_any(expectation)
            return start_of(expectation, columns)
        except Unjudgeable as error:
            raise InvalidPipeline(
                f"gate: {self.path}: expectation {number + 1} cannot be judged.",
                f"{expectation['type']}: {error}.",
                f"Change it or leave it out. What is judged: {name_page('gate')}. Nothing was published.",
                code="expectation-not-judged",
            ) from error

    def check_columns(self, sink: str, columns: Collection[str]) -> None:
        """Refuse a suite that names a column that the sink's rows do not have. Raises InvalidPipeline."""
        missing = [name for name in self.columns if name not in columns]
        if missing:
            raise InvalidPipeline(
                f"gate: {self.path} names {_quote(missing)}, and sink '{sink}' has no such column.",
                f"It has {_quote(columns)}.",
                "Fix the suite, or what the transform returns. Nothing was written.",
                code="no-such-column",
            )


def check_installed() -> None:
    """Raise InvalidPipeline unless Great Expectations is installed. Does not import it."""
    if find_spec("great_expectations") is None:
        raise InvalidPipeline(
            "gate: its suites need Great Expectations.",
            "It is not installed in this environment.",
            "Install it: pip install 'onceonly[gate]'. Nothing was written.",
            code="package-missing",
        )


def load(path: str, project: Path) -> Suite:
    """Read the suite at `path`, relative to the project.

    Raises:
        InvalidPipeline: no such file, or not a suite.
    """
    data = _read_json(path, project / path)
    expectations = None
    if isinstance(data, dict):
        expectations = data.get("expectations")
    if not isinstance(expectations, list) or not expectations:
        raise _suite_error(path, "It has no list of 'expectations'.")
    for number, expectation in enumerate(expectations, 1):
        _check_expectation(path, number, expectation)
    name = str(data.get("name") or Path(path).name.split(".")[0])
    return Suite(path, name, tuple(expectations))


def _read_json(path: str, file: Path) -> Any:
    try:
        return json.loads(file.read_text(), parse_float=Decimal)
    except FileNotFoundError:
        raise InvalidPipeline(
            f"gate: there is no suite {path}.",
            f"Searched: {file.parent}.",
            f"Write it ({name_page('gate')}), or remove it from the gate. Nothing was written.",
            code="suite-missing",
        ) from None
    except (OSError, ValueError) as error:
        raise _suite_error(path, f"{error}.") from error


def _check_expectation(path: str, number: int, expectation: Any) -> None:
    if not isinstance(expectation, dict) or not isinstance(expectation.get("type"), str):
        raise _suite_error(path, f"Expectation {number} has no 'type'.")
    if not isinstance(expectation.get("kwargs", {}), dict):
        raise _suite_error(path, f"The 'kwargs' of expectation {number} are not an object.")
    severity = expectation.get("severity", "critical")
    if severity not in SEVERITIES:
        raise _suite_error(
            path, f"Expectation {number} has the severity '{severity}'. Use one of {', '.join(SEVERITIES)}."
        )


def _columns_of(expectation: Mapping[str, Any]) -> list[str]:
    """Return the columns that an expectation and its condition name and that have to exist."""
    kwargs = expectation.get("kwargs", {})
    if expectation["type"].startswith("expect_table_"):  # these check which columns exist
        return []
    names: list[Any] = []
    for key in ("column", "column_A", "column_B"):
        if key in kwargs:
            names.append(kwargs[key])
    names += kwargs.get("column_list", [])
    names += list_columns(kwargs.get("row_condition"))
    return [name for name in names if isinstance(name, str)]


def _quote(names: Collection[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _suite_error(path: str, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"gate: {path} is not an expectation suite.",
        why,
        f"An example: {name_page('gate')}. Nothing was written.",
        code="suite-invalid",
    )


RULES: Mapping[str, Callable[[Arguments], Start]] = {
    "expect_column_distinct_values_to_be_in_set": partial(
        column_rules.distinct_in_set, may_have_others=False, must_have_all=False
    ),
    "expect_column_distinct_values_to_contain_set": partial(
        column_rules.distinct_in_set, may_have_others=True, must_have_all=True
    ),
    "expect_column_distinct_values_to_equal_set": partial(
        column_rules.distinct_in_set, may_have_others=False, must_have_all=True
    ),
    "expect_column_max_to_be_between": partial(column_rules.extreme, find=max),
    "expect_column_mean_to_be_between": column_rules.mean,
    "expect_column_median_to_be_between": column_rules.median,
    "expect_column_min_to_be_between": partial(column_rules.extreme, find=min),
    "expect_column_most_common_value_to_be_in_set": column_rules.most_common,
    "expect_column_pair_values_a_to_be_greater_than_b": row_rules.pair_greater,
    "expect_column_pair_values_to_be_equal": row_rules.pair_equal,
    "expect_column_pair_values_to_be_in_set": row_rules.pair_in_set,
    "expect_column_proportion_of_non_null_values_to_be_between": column_rules.non_null_proportion,
    "expect_column_proportion_of_unique_values_to_be_between": partial(column_rules.unique_figure, is_proportion=True),
    "expect_column_quantile_values_to_be_between": column_rules.quantiles,
    "expect_column_stdev_to_be_between": column_rules.deviation,
    "expect_column_sum_to_be_between": column_rules.total,
    "expect_column_to_exist": table_rules.column_exists,
    "expect_column_type_to_be": partial(table_rules.column_type, key="type_"),
    "expect_column_unique_value_count_to_be_between": partial(column_rules.unique_figure, is_proportion=False),
    "expect_column_value_lengths_to_be_between": row_rules.length_between,
    "expect_column_value_lengths_to_equal": row_rules.length_equal,
    "expect_column_value_z_scores_to_be_less_than": column_rules.z_scores,
    "expect_column_values_to_be_between": row_rules.values_between,
    "expect_column_values_to_be_dateutil_parseable": row_rules.dateutil_parseable,
    "expect_column_values_to_be_in_set": partial(row_rules.in_set, expected=True),
    "expect_column_values_to_be_in_type_list": partial(table_rules.column_type, key="type_list"),
    "expect_column_values_to_be_json_parseable": row_rules.json_parseable,
    "expect_column_values_to_be_null": partial(row_rules.nullity, expected=True),
    "expect_column_values_to_be_of_type": partial(table_rules.column_type, key="type_"),
    "expect_column_values_to_be_unique": row_rules.values_unique,
    "expect_column_values_to_match_json_schema": row_rules.json_schema,
    "expect_column_values_to_match_like_pattern": partial(row_rules.like, expected=True),
    "expect_column_values_to_match_like_pattern_list": partial(row_rules.likes, expected=True),
    "expect_column_values_to_match_regex": partial(row_rules.regex, expected=True),
    "expect_column_values_to_match_regex_list": partial(row_rules.regexes, expected=True),
    "expect_column_values_to_match_strftime_format": row_rules.strftime,
    "expect_column_values_to_not_be_in_set": partial(row_rules.in_set, expected=False),
    "expect_column_values_to_not_be_null": partial(row_rules.nullity, expected=False),
    "expect_column_values_to_not_be_outliers": column_rules.not_outliers,
    "expect_column_values_to_not_match_like_pattern": partial(row_rules.like, expected=False),
    "expect_column_values_to_not_match_like_pattern_list": partial(row_rules.likes, expected=False),
    "expect_column_values_to_not_match_regex": partial(row_rules.regex, expected=False),
    "expect_column_values_to_not_match_regex_list": partial(row_rules.regexes, expected=False),
    "expect_compound_columns_to_be_unique": row_rules.compound_unique,
    "expect_multicolumn_sum_to_equal": row_rules.sum_equal,
    "expect_multicolumn_values_to_be_equal": row_rules.all_equal,
    "expect_select_column_values_to_be_unique_within_record": row_rules.unique_within_row,
    "expect_table_column_count_to_be_between": partial(table_rules.column_count, is_exact=False),
    "expect_table_column_count_to_equal": partial(table_rules.column_count, is_exact=True),
    "expect_table_columns_to_match_ordered_list": partial(table_rules.column_names, is_ordered=True),
    "expect_table_columns_to_match_set": partial(table_rules.column_names, is_ordered=False),
    "expect_table_row_count_to_be_between": partial(table_rules.row_count, is_exact=False),
    "expect_table_row_count_to_equal": partial(table_rules.row_count, is_exact=True),
}
UNORDERED = "staged rows have no order, so its verdict would be chance"
WHY_NOT_JUDGED: Mapping[str, str] = {
    "expect_column_kl_divergence_to_be_less_than": "a gate does not judge distributions; use bounds, "
    "quantiles, or a set of distinct values",
    "expect_column_values_to_be_decreasing": UNORDERED,
    "expect_column_values_to_be_increasing": UNORDERED,
    "expect_query_results_to_match_comparison": "it compares with other data, and a gate sees staged rows only",
    "expect_table_row_count_to_equal_other_table": "it compares with another table, and a gate sees staged rows only",
    "unexpected_rows_expectation": "its SQL means something else on each engine; write it as a row_condition, or as an "
    "expectation on a column that the transform makes",
}
SAMPLE_TYPES = [  # one of each kind, for a column whose type is not known yet
    "boolean", "long", "double", "decimal(38,18)", "string", "date", "timestamp", "timestamp_ntz", "binary", "struct",
]  # fmt: skip


def start_of(expectation: Mapping[str, Any], columns: Mapping[str, Column]) -> Start:
    """Return how to judge rows of these columns.

    Raises:
        Unjudgeable: the expectation cannot be judged, or not on these columns.
    """
    kind = expectation["type"]
    why = WHY_NOT_JUDGED.get(kind)
    if why:
        raise Unjudgeable(why)
    if kind not in RULES:
        raise Unjudgeable("there is no such expectation, or this version of Onceonly does not know it")
    return RULES[kind](Arguments(expectation.get("kwargs", {}), columns))


def start_on_any(expectation: Mapping[str, Any]) -> Start:
    """Return how to judge rows whose columns are not known.

    Raises:
        Unjudgeable: it could be judged on no columns at all.
    """
    errors: list[Unjudgeable] = []
    for spark_type in SAMPLE_TYPES:
        try:
            return start_of(expectation, _ColumnsOfAnyName(spark_type))
        except Unjudgeable as error:
            errors.append(error)
    for reason in errors:
        if not isinstance(reason, WrongKind):  # it says more than that one of the samples has the wrong type
            raise reason
    raise errors[0]


class _ColumnsOfAnyName(Mapping[str, Column]):
    """Columns of any name, all of one type."""

    def __init__(self, spark_type: str) -> None:
        self._type, self._columns = spark_type, dict[str, Column]()

    def __getitem__(self, name: str) -> Column:
        return self._columns.setdefault(name, Column(name, self._type))

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)
