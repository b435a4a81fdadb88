"""What a dead letter is: a record that could not be used, as it was read, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from onceonly.pipeline.checks import option_error
from onceonly.pipeline.sources import FAIL, bad_records

LETTER_COLUMNS = ("key", "value", "headers", "topic", "partition", "offset", "timestamp", "error")
REJECTION_COLUMNS = ("topic", "partition", "offset", "error")  # what a transform says of one: which record, and why
MaxBad = int | float


def dead_letters_error(sink: str, why: str, todo: str) -> Exception:
    """Return the error for a sink that cannot take dead letters."""
    return option_error(f"sink '{sink}'", f"cannot take dead letters: {why}", todo, code="dead-letter-sink-unsuitable")


def check_partitions(sink: str, partition_by: Collection[str]) -> None:
    """Raise InvalidPipeline for a column that no dead letter has."""
    if unknown := sorted(set(partition_by) - set(LETTER_COLUMNS)):
        columns = ", ".join(LETTER_COLUMNS)
        raise dead_letters_error(sink, f"they have no column {unknown}", f"Partition by some of {columns}.")


def can_lack_records(sources: Iterable[Any], dead_letters: Any) -> bool:
    """Return whether a checkpoint of these sources can be published without all of the records that it read."""
    return dead_letters is not None or any(bad_records(source) != FAIL for source in sources)


def check_max_bad(max_bad: MaxBad) -> None:
    """Raise InvalidPipeline for what is neither a count nor a share."""
    is_share = isinstance(max_bad, float) and 0 < max_bad <= 1
    is_count = isinstance(max_bad, int) and not isinstance(max_bad, bool) and max_bad >= 0
    if not is_share and not is_count:
        todo = "Give a number of records, as in max_bad=100, or a share, as in max_bad=0.01."
        raise option_error(f"max_bad {max_bad!r}", "is neither", todo, code="option-invalid")


def is_beyond(max_bad: MaxBad, bad: int, records: int) -> bool:
    """Return whether there are more bad records than allowed, of so many that were read."""
    if isinstance(max_bad, float):
        return bad > max_bad * records
    return bad > max_bad
