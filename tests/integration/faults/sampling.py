"""Where processes are killed: `make test` takes a fixed sample that meets every kind of step, `make crash` all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")
WHOLE = os.environ.get("ONCEONLY_CRASH") == "whole"


def sampled(whole: T, sample: T) -> T:
    return whole if WHOLE else sample


def steps(points: Iterable[str]) -> set[str]:
    """Whichever side they are on, and whichever process they are in."""
    return {point.removeprefix("worker ").partition(" ")[2] for point in points}


def seconds(at_most: int) -> int:
    """For pytest's limit: the whole takes longer."""
    return sampled(10 * at_most, at_most)
