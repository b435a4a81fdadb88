"""Expectation suites: JSON files, read and checked without Great Expectations, whose import takes 3 s."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from onceonly.errors import InvalidPipeline
from onceonly.gate import catalog
from onceonly.gate.columns import Column
from onceonly.gate.conditions import list_columns
from onceonly.gate.errors import Unjudgeable
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
                return catalog.start_on_any(expectation)
            return catalog.start_of(expectation, columns)
        except Unjudgeable as error:
            raise InvalidPipeline(
                f"gate: {self.path}: expectation {number + 1} cannot be judged.",
                f"{expectation['type']}: {error}.",
                "Change it or leave it out. docs/gate.md lists what is judged. Nothing was published.",
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
    expectations = data.get("expectations") if isinstance(data, dict) else None
    if not isinstance(expectations, list) or not expectations:
        raise _refuse_suite(path, "It has no list of 'expectations'.")
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
            "Write it (docs/gate.md), or remove it from the gate. Nothing was written.",
            code="suite-missing",
        ) from None
    except (OSError, ValueError) as error:
        raise _refuse_suite(path, f"{error}.") from error


def _check_expectation(path: str, number: int, expectation: Any) -> None:
    if not isinstance(expectation, dict) or not isinstance(expectation.get("type"), str):
        raise _refuse_suite(path, f"Expectation {number} has no 'type'.")
    if not isinstance(expectation.get("kwargs", {}), dict):
        raise _refuse_suite(path, f"The 'kwargs' of expectation {number} are not an object.")
    severity = expectation.get("severity", "critical")
    if severity not in SEVERITIES:
        raise _refuse_suite(
            path, f"Expectation {number} has the severity '{severity}'. Use one of {', '.join(SEVERITIES)}."
        )


def _columns_of(expectation: Mapping[str, Any]) -> list[str]:
    """Return the columns that an expectation and its condition name and that have to exist."""
    kwargs = expectation.get("kwargs", {})
    if expectation["type"].startswith("expect_table_"):  # these check which columns exist
        return []
    single = [kwargs[key] for key in ("column", "column_A", "column_B") if key in kwargs]
    several = [*kwargs.get("column_list", []), *list_columns(kwargs.get("row_condition"))]
    return [name for name in [*single, *several] if isinstance(name, str)]


def _quote(names: Collection[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _refuse_suite(path: str, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"gate: {path} is not an expectation suite.",
        why,
        "See docs/gate.md for an example. Nothing was written.",
        code="suite-invalid",
    )
