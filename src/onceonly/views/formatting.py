"""How values are written for people: short, and the same on the command line and in Airflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from onceonly.checkpoint.commands import how_to_run
from onceonly.checkpoint.model import MAX_UNFIT_ATTEMPTS, Checkpoint, State
from onceonly.checkpoint.offsets import KAFKA, WORDS, Interval, TopicRange, has_data
from onceonly.counts import count
from onceonly.views.queries import rows_by_sink, without_secrets

HELD, REFUSED = "held", "refused"
SHOWN = 4  # topics of a checkpoint, one by one
GAPS = 5  # that are shown one by one, the newest


def number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def clock(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}"


def held_offsets(held: int) -> str:
    """What lies behind open transactions of producers."""
    return f"{count(held, 'record')} of open transactions cannot be read before these have ended"


def age(since: datetime) -> str:
    return span(datetime.now(UTC) - since)


def span(length: timedelta) -> str:
    """'42 s', '3 min', '5 h', '2 d'."""
    seconds = max(0, int(length.total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def size(count: float) -> str:
    """Bytes in the unit that people would use."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def place(uri: str) -> str:
    """A path as one would type it here."""
    try:
        return str(Path(uri).relative_to(Path.cwd()))
    except ValueError:
        return uri


def owner(key: str) -> str:
    """An owner key without what only the machine needs."""
    kind, *process = key.split(":")
    return f"cli {process[0]}:{process[-2]}" if kind == "cli" and len(process) > 2 else key.replace(":", " ", 1)


def state(checkpoint: Checkpoint) -> str:
    """Its state as people see it: the recorded one; HELD or REFUSED where it is staged and waits for a person."""
    if checkpoint.held:
        return HELD
    return REFUSED if checkpoint.refused else checkpoint.state.value


def unfit(checkpoint: Checkpoint) -> str:
    """'to be staged again, 1 of 3 times'; empty unless a rehearsal has ended its attempt."""
    if not checkpoint.has_to_be_staged_again:
        return ""
    return f"to be staged again, {len(checkpoint.unfit_attempts)} of {MAX_UNFIT_ATTEMPTS} times"


def how_to_decide(pipeline: str, epoch: int, seen: int) -> str:
    """The two commands that end a held checkpoint; `seen` is its number."""
    of = f"{pipeline} {epoch} --reason … --seen {seen}"
    return f"onceonly approve {of}, or onceonly abort {of}"


def how_to_look(checkpoint: Checkpoint) -> str:
    """The command that shows a checkpoint, and its number."""
    return f"onceonly describe {checkpoint.pipeline} {checkpoint.epoch}"


def actions(checkpoint: Checkpoint) -> list[str]:
    """The manual actions that it allows, as commands to copy; they are refused once the checkpoint has changed."""
    of = f"{checkpoint.pipeline} {checkpoint.epoch}"
    ends = f"--reason … --seen {checkpoint.changed_seq}"
    found = [f"onceonly approve {of} {ends}"] if checkpoint.held else []
    if checkpoint.refused:
        found.append(f"onceonly recover {checkpoint.pipeline}")
    if checkpoint.state in (State.PLANNED, State.STAGED, State.ABORTING):
        found.append(f"onceonly abort {of} {ends}")
    if checkpoint.state is State.COMMITTING:
        for sink in checkpoint.waiting:
            words = ["--committed", "--aborted", "--give-up"] if sink in checkpoint.in_doubt else ["--give-up"]
            found += [f"onceonly resolve {of} {word} {sink} {ends}" for word in words]
    return found


def held(checkpoint: Checkpoint) -> str:
    """What a held checkpoint waits for."""
    name = f"{checkpoint.pipeline} epoch {checkpoint.epoch}"
    decide = how_to_decide(checkpoint.pipeline, checkpoint.epoch, checkpoint.changed_seq)
    return f"{name} is held: its gate failed what is staged, and nothing is published. Decide: {decide}"


def refused(checkpoint: Checkpoint) -> str:
    """Which sink of a staged checkpoint waits for a person, and what for."""
    refusal = checkpoint.refused
    if refusal is None:
        return ""
    name = f"{checkpoint.pipeline} epoch {checkpoint.epoch}"
    code = f" ({refusal['code']})" if refusal["code"] else ""
    what = f"{name} is staged and not published. Sink '{refusal['sink']}' refuses it until a person acts{code}: "
    why = refusal["why"].removeprefix(f"sink '{refusal['sink']}': ").rstrip(".")
    return f"{what}{why}. {refusal['todo']}"


def staged_again(checkpoint: Checkpoint) -> str:
    """That an aborted checkpoint has to be staged again, with the command; empty unless a rehearsal has ended it."""
    if not checkpoint.has_to_be_staged_again:
        return ""
    name = f"{checkpoint.pipeline} epoch {checkpoint.epoch}"
    missing = f" {checkpoint.interval} is missing until then." if checkpoint.interval else ""
    why = (checkpoint.reason or "a rehearsal has ended its attempt").rstrip(".")
    return (
        f"{name} has to be staged again: {why}. Its records are not published.{missing} A run that is still running "
        f"does it by itself. If its run has ended: {how_to_run(checkpoint)}"
    )


def approval(checkpoint: Checkpoint) -> str:
    """'by ann: a known gap', and whether it has ended with the attempt that it was given to."""
    if checkpoint.approved is None:
        return ""
    ended = " (ended with its attempt, and publishes nothing)" if checkpoint.state is State.ABORTED else ""
    return f"by {checkpoint.approved['who']}: {checkpoint.approved['reason']}{ended}"


def waits(checkpoint: Checkpoint) -> str:
    """What a checkpoint needs people for; empty if it does not."""
    text: str = without_secrets(
        held(checkpoint) if checkpoint.held else refused(checkpoint) or staged_again(checkpoint)
    )
    return text


def missing(checkpoint: Checkpoint) -> str:
    """', missing in lake': which targets have lost it; empty where none has."""
    return f", missing in {', '.join(sorted(checkpoint.missing))}" if checkpoint.missing else ""


def missing_by_sink(pipeline: str, counts_by_sink: Mapping[str, int]) -> list[str]:
    """A line for each sink whose target lacks checkpoints."""
    return [
        f"{pipeline}: the target of sink '{sink}' lacks {count(number, 'checkpoint')}, as a person has accepted"
        for sink, number in sorted(counts_by_sink.items())
    ]


def rows(checkpoint: Checkpoint) -> str:
    """'200'; of several sinks each by its name: a sum would count a record once for each sink that it went to."""
    told = counts(rows_by_sink(checkpoint))
    return f"{told} ({checkpoint.bad_records:,} bad)" if checkpoint.bad_records else told


def counts(by_sink: Mapping[str, int | None]) -> str:
    """The same of counts by sink; '-' where nothing is staged."""
    if len(by_sink) == 1 or not any(by_sink.values()):
        return number(next(iter(by_sink.values()), None))
    return ", ".join(f"{sink} {number(count)}" for sink, count in by_sink.items())


def counted(by_sink: Mapping[str, int | None]) -> str:
    """'1 row', 'lake 5, late 1 rows': the same with its unit."""
    shown = [found for found in by_sink.values() if found is not None]
    one = len(by_sink) == 1 and shown == [1]
    return f"{counts(by_sink)} {'row' if one else 'rows'}"


def unsettled(found: Sequence[Checkpoint]) -> str:
    """'2, the oldest is epoch 6'; the oldest first. Nothing where all are settled."""
    if not found:
        return ""
    return f"epoch {found[0].epoch}" if len(found) == 1 else f"{len(found)}, the oldest is epoch {found[0].epoch}"


def range_text(range_: TopicRange) -> str:
    """What a checkpoint covers, short: offsets have gaps, so this is not a number of records."""
    parts = len([p for p, (start, end) in range_.partitions.items() if end > start])
    within = f" in {count(parts, 'partition')}" if range_.kind == KAFKA else ""
    return f"{count(range_.span, range_.unit)} of '{range_.topic}'{within}"


def covers(checkpoint: Checkpoint) -> str:
    if checkpoint.skipped is not None:
        return f"{_left_out(checkpoint)} (skipped by {checkpoint.owner}: {checkpoint.skipped})"
    if checkpoint.rewinds_to is not None:
        return f"takes back what came after epoch {checkpoint.rewinds_to}"
    if not has_data(checkpoint.ranges):
        return "nothing (no records)"
    if len(checkpoint.ranges) > SHOWN:
        offsets = sum(range_.span for range_ in checkpoint.ranges)
        ranges = f"{count(offsets, 'offset')} of {count(len(checkpoint.ranges), 'topic')}"
    else:
        ranges = ", ".join(range_text(range_) for range_ in checkpoint.ranges)
    return "; ".join(filter(None, [ranges, dated_ahead(checkpoint)]))


def dated_ahead(checkpoint: Checkpoint) -> str:
    """'1 record of topic 'flights' is dated in the future'; empty where none was passed over."""
    return ", ".join(ahead(range_.called, range_.ahead, range_.kind) for range_ in checkpoint.ranges if range_.ahead)


def ahead(source: str, number: int | None, kind: str) -> str:
    """The same of one source; None: more than were counted."""
    unit = "record" if kind == KAFKA else WORDS[kind][1]
    if number is None:
        return f"many {unit}s of {source} are dated in the future"
    return f"{count(number, unit)} of {source} {'is' if number == 1 else 'are'} dated in the future"


def _left_out(checkpoint: Checkpoint) -> str:
    """Of a chained pipeline, the offsets: an interval says itself what it is."""
    if checkpoint.interval is not None:
        return "nothing"
    spans = [(r, p, *span) for r in checkpoint.ranges for p, span in sorted(r.partitions.items())]
    named = [f"{_within(r, p)} {start:,} to {end:,}" for r, p, start, end in spans if end > start]
    return f"leaves out {', '.join(named)}"


def _within(range_: TopicRange, partition: int) -> str:
    """Only topics have partitions that are named."""
    where = f"partition {partition} from" if range_.kind == KAFKA else f"from {range_.unit}"
    return f"'{range_.topic}' {where}"


def bad(checkpoint: Checkpoint) -> str:
    """How many, and whose: "12 of 1,204 records (10 of 'orders', 2 by the transform)"."""
    if not checkpoint.bad:
        return ""
    parts = [f"{bad:,} of '{topic}'" for topic, bad in sorted(checkpoint.bad["undecoded"].items()) if bad]
    rejected = checkpoint.bad["rejected"]
    parts += [f"{rejected:,} by the transform"] if rejected else []
    said = f"{checkpoint.bad_records:,} of {count(checkpoint.bad['records'], 'record')}"
    return f"{said} ({', '.join(parts)})" if parts else said


def schemas(checkpoint: Checkpoint) -> str:
    """By which registered schemas its records are decoded: "orders value: ids 1, 2, read as orders-value 2 (id 5)"."""
    return "; ".join(
        f"{topic} {part}: {_pins(pins)}"
        for topic, parts in sorted(checkpoint.schemas.items())
        for part, pins in sorted(parts.items())
    )


def _pins(pins: Mapping[str, Any]) -> str:
    ids = sorted(map(int, pins["writers"]))
    named = f"{'id' if len(ids) == 1 else 'ids'} {', '.join(map(str, ids))}" if ids else "no ids"
    reader = pins.get("reader")
    return f"{named}, read as {reader['subject']} {reader['version']} (id {reader['id']})" if reader else named


def after(checkpoint: Checkpoint) -> str:
    """'flights epoch 12': on what it stands, where it comes after other pipelines."""
    told = {name: ", ".join(map(str, epochs)) or "none yet" for name, epochs in checkpoint.after.items()}
    return "; ".join(f"{name} epoch {epochs}" for name, epochs in told.items())


def gap(pipeline: str, found: Interval, file: str = "FILE.py:NAME") -> str:
    """What is left out, why that may be, and what to do. `file`: what names the pipeline on the command line."""
    start, end = (f"{time:%Y-%m-%dT%H:%M:%SZ}" for time in (found.start, found.end))
    return (
        f"{pipeline}: no checkpoint covers {found}.\n"
        "Its runs are still to come, or there were none: the scheduler was down, or the DAG was paused and has "
        "catchup=False.\n"
        f"Run what is missing: airflow backfill create, or onceonly run {file} --interval {start} {end}. If it "
        f"is left out on purpose: onceonly skip {pipeline} --interval {start} {end} --reason …"
    )


def gaps(pipeline: str, found: Sequence[Interval]) -> list[str]:
    """The same, oldest first, and how many more there are."""
    told = [gap(pipeline, each) for each in found[-GAPS:]]
    more = len(found) - len(told)
    return (
        [f"{pipeline}: {number(more)} more before these (onceonly status {pipeline} --json)", *told] if more else told
    )


def staged(handle: Mapping[str, Any]) -> str:
    """'6,000 rows, 1.2 MB, 30 files', as far as the sink counts them, and what else it says of them."""
    counts = [_rows_of(handle), *([size(handle["bytes"])] if "bytes" in handle else []), *_pieces(handle)]
    return "; ".join([", ".join(counts), *([handle["note"]] if "note" in handle else [])])


def _rows_of(handle: Mapping[str, Any]) -> str:
    if handle.get("rows") is None:
        return "rows not counted"
    return count(handle["rows"], str(handle.get("unit", "row")))


def _pieces(handle: Mapping[str, Any]) -> list[str]:
    """In how many files, or transactions that are open in Kafka."""
    files, parts = handle.get("files"), handle.get("parts")
    found = [] if parts is None else [count(sum(bool(part["tx"]) for part in parts), "open transaction")]
    return found if files is None else [*found, count(files if isinstance(files, int) else len(files), "file")]


def target(handle: Mapping[str, Any]) -> str:
    """Where the rows go: a table's or folder's place, topics, or what the sink itself calls its target."""
    if "topics" in handle:
        return ", ".join(handle["topics"])
    return place(str(handle.get("uri") or handle.get("target") or handle.get("kind") or "?"))


def verdict(found: Mapping[str, Any] | None) -> list[str]:
    """'passed', 'sink delays: 3 checks on 40 rows in process', and each check that is not ok."""
    if found is None:
        return ["no verdict"]
    sinks = [
        f"{sink}: {count(len(seen['checks']), 'check')} on {counted({sink: seen['rows']})}, {seen['path']}"
        for sink, seen in found["sinks"].items()
    ]
    bad = [
        f"{each['severity']}: {each['what']} ({each['observed']})"
        for seen in found["sinks"].values()
        for each in seen["checks"]
        if not each["ok"]
    ]
    return [found["outcome"], *sinks, *bad]
