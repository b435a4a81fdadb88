"""Expectation suites: JSON files, read and checked without Great Expectations, whose import takes 3 s."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from onceonly.errors import InvalidPipeline

SEVERITIES = ("critical", "warning", "info")


@dataclass(frozen=True)
class Suite:
    """A file of expectations: {"name": …, "expectations": [{"type": …, "kwargs": {…}, "severity": …}]}."""

    path: str
    name: str
    expectations: tuple[Mapping[str, Any], ...]

    @property
    def columns(self) -> list[str]:
        """The columns that the expectations name, in order."""
        named = [name for each in self.expectations for name in _columns(each)]
        return list(dict.fromkeys(named))

    def check_columns(self, sink: str, there: Collection[str]) -> None:
        """Raises InvalidPipeline for a column that the sink's rows do not have."""
        if missing := [name for name in self.columns if name not in there]:
            raise InvalidPipeline(
                f"gate: {self.path} names {_quoted(missing)}, and sink '{sink}' has no such column.",
                f"It has {_quoted(there)}.",
                "Fix the suite, or what the transform returns. Nothing was written.",
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
        return json.loads(file.read_text())
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
    return [name for name in [*single, *kwargs.get("column_list", [])] if isinstance(name, str)]


def _quoted(names: Collection[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _unusable(path: str, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"gate: {path} is not an expectation suite.", why, "See docs/gate.md for an example. Nothing was written."
    )
