"""A pipeline's gate: checks on the staged rows, as plain data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeVar

from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline

T = TypeVar("T")
PER_SINK = ("suites", "min_rows", "max_rows", "fresh")


@dataclass(frozen=True)
class Fresh:
    """The maximum age of the newest row.

    Args:
        column: a date or timestamp column.
        within: seconds before the end of the interval or, in chained mode, before the rows were staged.
    """

    column: str
    within: float

    def __post_init__(self) -> None:
        if not self.column or self.within <= 0:
            raise _gate_error(
                f"fresh {(self.column, self.within)!r}", "needs a column and seconds above 0", code="option-invalid"
            )


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Checks on the rows between stage and commit.

    Each of the first four is a dict by sink name, or a plain value if the pipeline has a single sink.

    Args:
        suites: Great Expectations suites as JSON files, relative to the project.
        min_rows, max_rows: the minimum and maximum number of rows of a checkpoint.
        fresh: the maximum age of the newest row, in a checkpoint that has rows.
        on_fail: 'abort', or 'hold': the checkpoint stays staged until somebody approves or aborts it.
        keep_failed: never delete the rows of a failed attempt; by default they are kept until another attempt has
            ended.
        in_process_rows: up to this number of rows of a sink, its suite runs in the process, without Spark.
    """

    suites: Mapping[str, str] | str = field(default_factory=dict)
    min_rows: Mapping[str, int] | int = field(default_factory=dict)
    max_rows: Mapping[str, int] | int = field(default_factory=dict)
    fresh: Mapping[str, Fresh] | Fresh = field(default_factory=dict)
    on_fail: Literal["abort", "hold"] = "abort"
    keep_failed: bool = False
    in_process_rows: int = 500_000

    def __post_init__(self) -> None:
        if self.on_fail not in ("abort", "hold"):
            raise _gate_error(f"on_fail '{self.on_fail}'", "is not known: use 'abort' or 'hold'", code="option-invalid")
        for path in _values(self.suites):
            if not isinstance(path, str) or not path.endswith(".json"):
                raise _gate_error(
                    f"suite {path!r}",
                    "is not a .json file: name one, as in 'schemas/a.expectations.json'",
                    code="option-invalid",
                )
        self._check_counts()
        for fresh in _values(self.fresh):
            if not isinstance(fresh, Fresh):
                raise _gate_error("fresh", f"is {fresh!r}: give Fresh('column', within=seconds)", code="option-invalid")
        if all(getattr(self, name) == {} for name in PER_SINK):
            raise _gate_error(
                "no checks", "are configured: set suites, min_rows, max_rows or fresh", code="option-missing"
            )

    def _check_counts(self) -> None:
        for name in ("min_rows", "max_rows", "in_process_rows"):
            for count in _values(getattr(self, name)):
                if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                    raise _gate_error(name, f"is {count!r}: give a number of rows, 0 or more", code="option-invalid")

    def checks_freshness(self, sink: str) -> bool:
        return isinstance(self.fresh, Mapping) and sink in self.fresh

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Gate:
        """Return the gate of a definition: the inverse of `to_json`."""
        fresh = {sink: Fresh(**fresh_json) for sink, fresh_json in data["fresh"].items()}
        return cls(**{**data, "fresh": fresh})


def assign_to_sinks(gate: Gate, sinks: Collection[str], apart: object = None) -> Gate:
    """Return the same gate with every check as a dict by sink.

    Args:
        sinks: names of the sinks that a gate can check.
        apart: the name of the sink for dead letters, which a check that names no sink is not meant for.
    Raises:
        InvalidPipeline: a check names another sink, or names none although there are several.
    """
    by_sink: dict[str, Any] = {name: _by_sink(name, getattr(gate, name), sinks, apart) for name in PER_SINK}
    assigned = replace(gate, **by_sink)
    for sink in sorted(sinks):
        least, most = _mapping(assigned.min_rows).get(sink), _mapping(assigned.max_rows).get(sink)
        if least is not None and most is not None and least > most:
            raise _gate_error(f"sink '{sink}'", f"has min_rows {least} above max_rows {most}", code="options-conflict")
    return assigned


def can_fail_without_rows(gate: Gate) -> bool:
    """Return whether a checkpoint without rows can fail the gate."""
    return bool(gate.suites) or any(_mapping(gate.min_rows).values())


def has_large_suite(gate: Gate, handles: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether a suite has more rows to check than `in_process_rows`.

    Args:
        handles: by sink.
    """
    return any(handles[sink]["rows"] > gate.in_process_rows for sink in _mapping(gate.suites) if sink in handles)


def _mapping(check: Mapping[str, T] | T) -> Mapping[str, T]:
    """Return a check of a gate from `assign_to_sinks`, where each one is by sink."""
    assert isinstance(check, Mapping)
    return check


def _values(check: Any) -> Collection[Any]:
    """Return the values of a check, which is a dict by sink or a plain value."""
    if isinstance(check, Mapping):
        return check.values()
    return [check]


def _by_sink(option: str, check: Any, sinks: Collection[str], apart: object) -> dict[str, Any]:
    """Return a check as a dict by sink; a plain value is for the only sink that it can be meant for."""
    if not isinstance(check, Mapping):
        possible_sinks = [sink for sink in sinks if sink != apart]
        if len(possible_sinks) != 1:
            raise _gate_error(
                f"{option}={check!r}",
                f"names no sink: give a dict by sink name, of {sorted(sinks)}",
                code="option-invalid",
            )
        return dict.fromkeys(possible_sinks, check)
    if unknown := sorted(set(check) - set(sinks)):
        raise _gate_error(
            f"{option} of {unknown}",
            f"names a sink that a gate cannot check; it can check {sorted(sinks)}",
            code="option-invalid",
        )
    return dict(check)


def _gate_error(what: str, why: str, *, code: str) -> InvalidPipeline:
    return InvalidPipeline(f"gate: {what} {why}.", todo=f"See: {name_page('gate')}. Nothing was written.", code=code)
