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
from onceonly.gate.conditions import columns_named_in
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
        """The columns that the expectations name, in order."""
        named = [name for each in self.expectations for name in _columns(each)]
        return list(dict.fromkeys(named))

    def starts(self, columns: Mapping[str, Column] | None) -> list[Start]:
        """Return how each expectation is judged.

        Args:
            columns: those of the rows; None: they are not known, and there are no rows.
        Raises:
            InvalidPipeline: one of them cannot be judged, or not on these columns.
        """
        return [self._start(number, columns) for number in range(len(self.expectations))]

    def _start(self, number: int, columns: Mapping[str, Column] | None) -> Start:
        expectation = self.expectations[number]
        try:
            return catalog.start_on_any(expectation) if columns is None else catalog.start_of(expectation, columns)
        except Unjudgeable as error:
            raise InvalidPipeline(
                f"gate: {self.path}: expectation {number + 1} cannot be judged.",
                f"{expectation['type']}: {error}.",
                "Change it or leave it out. docs/gate.md lists what is judged. Nothing was published.",
                code="expectation-not-judged",
            ) from error

    def check_columns(self, sink: str, there: Collection[str]) -> None:
        """Refuse a column that the sink's rows do not have. Raises InvalidPipeline."""
        if missing := [name for name in self.columns if name not in there]:
            raise InvalidPipeline(
                f"gate: {self.path} names {_quoted(missing)}, and sink '{sink}' has no such column.",
                f"It has {_quoted(there)}.",
                "Fix the suite, or what the transform returns. Nothing was written.",
                code="no-such-column",
            )


def check_installed() -> None:
    if find_spec("great_expectations") is None:
        raise InvalidPipeline(
            "gate: its suites need Great Expectations.",
            "It is not installed in this environment.",
            "Install it: pip install 'onceonly[gate]'. Nothing was written.",
        )


def load(path: str, project: Path) -> Suite:
    """The suite at `path`, relative to the project.

    Raises:
        InvalidPipeline: no such file, or not a suite.
    """
    data = _json(path, project / path)
    found = data.get("expectations") if isinstance(data, dict) else None
    if not isinstance(found, list) or not found:
        raise _unusable(path, "It has no list of 'expectations'.")
    for number, each in enumerate(found, 1):
        _check(path, number, each)
    return Suite(path, str(data.get("name") or Path(path).name.split(".")[0]), tuple(found))


def _json(path: str, file: Path) -> Any:
    try:
        return json.loads(file.read_text(), parse_float=Decimal)
    except FileNotFoundError:
        raise InvalidPipeline(
            f"gate: there is no suite {path}.",
            f"Searched: {file.parent}.",
            "Write it (docs/gate.md), or remove it from the gate. Nothing was written.",
        ) from None
    except (OSError, ValueError) as error:
        raise _unusable(path, f"{error}.") from error


def _check(path: str, number: int, each: Any) -> None:
    if not isinstance(each, dict) or not isinstance(each.get("type"), str):
        raise _unusable(path, f"Expectation {number} has no 'type'.")
    if not isinstance(each.get("kwargs", {}), dict):
        raise _unusable(path, f"The 'kwargs' of expectation {number} are not an object.")
    if each.get("severity", "critical") not in SEVERITIES:
        known = ", ".join(SEVERITIES)
        raise _unusable(path, f"Expectation {number} has the severity '{each['severity']}'. Use one of {known}.")


def _columns(expectation: Mapping[str, Any]) -> list[str]:
    kwargs = expectation.get("kwargs", {})
    if expectation["type"].startswith("expect_table_"):  # these check which columns exist
        return []
    single = [kwargs[key] for key in ("column", "column_A", "column_B") if key in kwargs]
    several = [*kwargs.get("column_list", []), *columns_named_in(kwargs.get("row_condition"))]
    return [name for name in [*single, *several] if isinstance(name, str)]


def _quoted(names: Collection[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _unusable(path: str, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"gate: {path} is not an expectation suite.", why, "See docs/gate.md for an example. Nothing was written."
    )
