"""Sentences about intervals that no checkpoint covers, or that are unlike the others, with the commands to run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from onceonly.checkpoint.commands import PIPELINE_FILE, how_to_backfill, how_to_run_interval, interval_times
from onceonly.checkpoint.offsets import Interval
from onceonly.counts import count
from onceonly.views import formatting

GAP_REASONS = (
    "Its run is still to come, has failed (and may have been deleted, or marked success), or there was none: the "
    "scheduler was down, or the DAG was paused and has catchup=False."
)
MAX_COMMANDS_SHOWN = 7  # of those that fill one gap
NARROWEST_USUAL, WIDEST_USUAL = 0.85, 1.2  # times the usual width of an interval
MAX_GAPS_SHOWN = 5  # the newest; of those before them only their number is shown


def describe_gap(
    pipeline: str,
    interval: Interval,
    file: str = PIPELINE_FILE,
    dag_id: str | None = None,
    width: timedelta | None = None,
    with_reasons: bool = True,
) -> str:
    """Say what no checkpoint covers, why that may be, and what to do.

    Args:
        file: what names the pipeline on the command line.
        dag_id: the DAG that runs it, where that is known.
        width: of its intervals, where they have one.
        with_reasons: False: why that may be was said before.
    """
    start, end = interval_times(interval)
    lines = [f"{pipeline}: no checkpoint covers {interval}."]
    if with_reasons:
        lines.append(GAP_REASONS)
    lines += _how_to_run_gap(interval, file, dag_id, width)
    lines[-1] += f" If it is left out on purpose: onceonly skip {pipeline} --interval {start} {end} --reason …"
    return "\n".join(lines)


def _how_to_run_gap(interval: Interval, file: str, dag_id: str | None, width: timedelta | None) -> list[str]:
    """Return lines that say how each interval of the schedule in a gap gets a checkpoint of its own."""
    is_one_interval = interval.end - interval.start == width
    by_hand = how_to_run_interval(interval, file=file)
    if dag_id is not None:
        text = (
            "Run what is missing: clear its run in Airflow, or "
            f"{how_to_backfill(interval, dag_id)} (a run for each interval of the schedule)"
        )
        return [f"{text}; or {by_hand}." if is_one_interval else f"{text}."]
    # no run of an Airflow is known, and there may be none: what works anyway comes first
    parts = interval.split(width)
    if is_one_interval or len(parts) == 1:
        note = "" if is_one_interval else " (one checkpoint for all of it)"
        return [
            f"Run what is missing: {by_hand}{note}. In Airflow, clear its run, or "
            f"{how_to_backfill(interval, dag_id)} (a run for each interval of the schedule)."
        ]
    return [
        "Run what is missing, one by one:",
        *_list_commands(parts, file),
        f"That makes {count(len(parts), 'checkpoint')}. In Airflow, clear their runs, or "
        f"{how_to_backfill(interval, dag_id)} (a run for each interval of the schedule).",
    ]


def describe_unusual_width(interval: Interval, width: timedelta | None, file: str) -> str:
    """Say that an interval is much wider or narrower than those of its pipeline; empty where it is not.

    Where clocks change, or months differ, a tenth or so is usual.
    """
    own_width = interval.end - interval.start
    if width is None or NARROWEST_USUAL * width <= own_width <= WIDEST_USUAL * width:
        return ""
    text = (
        f"{interval} is {formatting.span(own_width)} long, and the intervals so far are {formatting.span(width)}. It "
        "becomes one checkpoint: from then on it is processed again, or skipped, only as a whole."
    )
    parts = interval.split(width)
    if len(parts) == 1:
        return text
    return "\n".join([f"{text} For a checkpoint per interval:", *_list_commands(parts, file)])


def _list_commands(intervals: Sequence[Interval], file: str) -> list[str]:
    """Return the commands that run the first of these intervals, and a line that says how far the rest goes."""
    lines = []
    for interval in intervals[:MAX_COMMANDS_SHOWN]:
        lines.append(f"  {how_to_run_interval(interval, file=file)}")
    if len(intervals) > MAX_COMMANDS_SHOWN:
        lines.append(f"  and so on, up to {interval_times(intervals[-1])[1]}")
    return lines


def describe_gaps(
    pipeline: str,
    intervals: Sequence[Interval],
    file: str = PIPELINE_FILE,
    dag_id: str | None = None,
    width: timedelta | None = None,
) -> list[str]:
    """Return `describe_gap` of each of the newest, oldest first, after a line that says how many more there are.

    Only the first text says why there may be a gap.
    """
    texts: list[str] = []
    for interval in intervals[-MAX_GAPS_SHOWN:]:
        texts.append(describe_gap(pipeline, interval, file, dag_id, width, with_reasons=not texts))
    more = len(intervals) - len(texts)
    if more:
        texts.insert(0, f"{pipeline}: {formatting.number(more)} more before these (onceonly status {pipeline} --json)")
    return texts
