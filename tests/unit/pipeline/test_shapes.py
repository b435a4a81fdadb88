"""Data that does not have the shape it should: what is said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from onceonly.pipeline.shapes import Below, Count, problem


@dataclass(frozen=True)
class Point:
    x: int
    label: str | None = None
    marks: list[str] = field(default_factory=list)


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (1, int),
        (1, float),
        (1.5, float),
        (True, bool),
        (None, None),
        (None, str | None),
        ("a", str | int),
        ("b", Literal["a", "b"]),
        ([1, 2], Sequence[int]),
        ([["a", 1], ["b", 2]], list[tuple[str, int]]),
        ([1, 2, 3], tuple[int, ...]),
        ({"a": [1]}, Mapping[str, list[int]]),
        ({"a": object()}, Mapping[str, Any]),
        (0, Count),
        ("day=1/part.parquet", Below),
        ({"x": 1}, Point),
        ({"x": 1, "label": None}, Point),
    ],
)
def test_what_fits(value: Any, shape: Any) -> None:
    assert problem(value, shape) is None


@pytest.mark.parametrize(
    ("value", "shape", "said"),
    [
        ("1", int, "it is '1'"),
        (True, int, "it is True"),
        (True, float, "it is True"),
        (1, bool, "it is 1"),
        (None, str, "it is None"),
        (1.5, str | int, "it is 1.5"),
        ("c", Literal["a", "b"], "it is 'c'"),
        ("ab", Sequence[str], "it is 'ab'"),
        ([1, "2"], Sequence[int], "[1] is '2'"),
        ([1, "2"], list[int] | None, "[1] is '2'"),
        ([["a"]], list[tuple[str, int]], "[0] is ['a']"),
        ("ab", tuple[str, str], "it is 'ab'"),
        ([["a", "b"]], list[tuple[str, int]], "[0][1] is 'b'"),
        ([1], Mapping[str, int], "it is [1]"),
        ({"a": {"b": 1}}, Mapping[str, Mapping[str, str]], "a.b is 1"),
        (-1, Count, "it is -1"),
        ({}, Point, "x is missing"),
        ({"x": 1, "y": 2}, Point, "y is not known"),
        ([], Point, "it is []"),
        ("x" * 200, int, "it is '" + "x" * 79 + "…"),
    ],
)
def test_what_does_not_fit_is_reported_with_its_place(value: Any, shape: Any, said: str) -> None:
    assert problem(value, shape) == said


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/..", "a\0b"])
def test_a_path_that_leads_out_is_none(path: str) -> None:
    assert problem(path, Below)
