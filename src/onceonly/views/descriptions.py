"""Sentences about a checkpoint for people: the same on the command line, in Airflow, and in logs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onceonly import redaction
from onceonly.checkpoint.commands import PIPELINE_FILE, how_to_run
from onceonly.checkpoint.model import MAX_UNFIT_ATTEMPTS, Checkpoint, Claim, Event, Row, State
from onceonly.checkpoint.offsets import KAFKA, SOURCE_WORDS, TopicRange, has_data
from onceonly.counts import count, format_bytes
from onceonly.views import formatting

GIT_COMMIT = re.compile(r"^(git [0-9a-f]{12})[0-9a-f]*$")  # shown by its first characters
MAX_TOPICS_SHOWN = 4  # of a checkpoint that has more only their number is shown
JOB_LINE_PREFIX = "ONCEONLY: "  # begins a line of the stage job that is meant for people; anything else is Spark's


def describe_hidden_offsets(records: int) -> str:
    """Say how many records lie behind open transactions of producers."""
    return f"{count(records, 'record')} of open transactions cannot be read before these have ended"


def describe_no_data(hidden_offsets: int, is_at_end: bool, done: str) -> str:
    """Say why a plan has found no new data, and whether there will be some.

    Args:
        hidden_offsets: how many offsets lie behind open transactions of producers.
        is_at_end: the sources have ended.
        done: what is said where neither is so.
    """
    if is_at_end:
        return "the end of the source is reached, and nothing more is to be read"
    if hidden_offsets:
        return f"{describe_hidden_offsets(hidden_offsets)}, nothing to do yet"
    return done


def describe_position(checkpoint: Checkpoint) -> str:
    """Say what a checkpoint of a chain records that reads nothing: where the pipeline begins, or where it ends."""
    starts, limits = [], []
    for range_ in checkpoint.ranges:
        starts.append(f"{range_.topic} {range_.starts}")
        if range_.limits:
            limits.append(f"{range_.topic} {dict(range_.limits)}")
    if limits:
        return f"records where the source ends ({', '.join(limits)}): no records before that are left to read"
    return f"records where the pipeline begins ({', '.join(starts)}): no records there yet"


def describe_unfit_attempts(checkpoint: Checkpoint) -> str:
    """Return 'to be staged again, 1 of 3 times'; empty unless a rehearsal has ended its attempt."""
    if not checkpoint.has_to_be_staged_again:
        return ""
    return f"to be staged again, {len(checkpoint.unfit_attempts)} of {MAX_UNFIT_ATTEMPTS} times"


def list_decision_commands(pipeline: str, epoch: int, seen: int) -> tuple[str, str]:
    """Return the two commands that end a held checkpoint: approve and abort. `seen` is its number."""
    return (
        f"onceonly approve {pipeline} {epoch} --reason … --seen {seen}",
        f"onceonly abort {pipeline} {epoch} --reason … --seen {seen}",
    )


def how_to_decide(pipeline: str, epoch: int, seen: int) -> str:
    """Return the same as a part of a sentence."""
    return ", or ".join(list_decision_commands(pipeline, epoch, seen))


def how_to_look(checkpoint: Checkpoint) -> str:
    """Return the command that shows a checkpoint, and its number."""
    return f"onceonly describe {checkpoint.pipeline} {checkpoint.epoch}"


def list_actions(checkpoint: Checkpoint) -> list[str]:
    """Return the manual actions that it allows, as commands to copy.

    They are refused once the checkpoint has changed.
    """
    name = f"{checkpoint.pipeline} {checkpoint.epoch}"
    option = f"--seen {checkpoint.changed_seq}"
    approve, abort = list_decision_commands(checkpoint.pipeline, checkpoint.epoch, checkpoint.changed_seq)
    commands = []
    if checkpoint.is_held:
        commands.append(approve)
    if checkpoint.refused:
        commands.append(f"onceonly recover {checkpoint.pipeline}")
    if checkpoint.state in (State.PLANNED, State.STAGED, State.ABORTING):
        commands.append(abort)
    if checkpoint.state is State.COMMITTING:
        for sink in checkpoint.waiting:
            if sink in checkpoint.in_doubt:  # its evidence no longer exists: a person has to say
                commands.append(f"onceonly resolve {name} --committed {sink} --reason … {option}")
                commands.append(f"onceonly resolve {name} --aborted {sink} --reason … {option}")
            commands.append(f"onceonly resolve {name} --give-up {sink} --reason … {option}")
    return commands


def describe_hold(checkpoint: Checkpoint) -> str:
    """Say what a held checkpoint waits for."""
    name = f"{checkpoint.pipeline} epoch {checkpoint.epoch}"
    decide = how_to_decide(checkpoint.pipeline, checkpoint.epoch, checkpoint.changed_seq)
    return f"{name} is held: its gate failed what is staged, and nothing is published. Decide: {decide}"


def describe_refusal(checkpoint: Checkpoint) -> str:
    """Say which sink of a staged checkpoint waits for a person, and what for; empty if none does."""
    refusal = checkpoint.refused
    if refusal is None:
        return ""
    name = f"{checkpoint.pipeline} epoch {checkpoint.epoch}"
    code = f" ({refusal['code']})" if refusal["code"] else ""
    what = f"{name} is staged and not published. Sink '{refusal['sink']}' refuses it until a person acts{code}"
    why = refusal["why"].removeprefix(f"sink '{refusal['sink']}': ").rstrip(".")
    return f"{what}: {why}. {refusal['todo']}"


def describe_stage_again(checkpoint: Checkpoint) -> str:
    """Say that an aborted checkpoint has to be staged again, and how; empty unless a rehearsal has ended it."""
    if not checkpoint.has_to_be_staged_again:
        return ""
    name = f"{checkpoint.pipeline} epoch {checkpoint.epoch}"
    missing = f" {checkpoint.interval} is missing until then." if checkpoint.interval else ""
    why = (checkpoint.reason or "a rehearsal has ended its attempt").rstrip(".")
    return (
        f"{name} has to be staged again: {why}. Its records are not published.{missing} A run that is still running "
        f"does it by itself. If its run has ended: {how_to_run(checkpoint)}"
    )


def describe_recovery_step(checkpoint: Checkpoint) -> str:
    """Say what recovery makes of a checkpoint whose owner has ended; empty if it is settled, or waits for a person."""
    if checkpoint.state.is_settled or checkpoint.is_held or checkpoint.refused or checkpoint.in_doubt:
        return ""
    if checkpoint.state is State.COMMITTING:
        return "Its publication is decided, and recovery completes it."
    if checkpoint.state is State.STAGED:
        return _describe_recovery_of_staged(checkpoint)
    missing = f" {checkpoint.interval} is missing then until it is run." if checkpoint.interval else ""
    return f"Recovery aborts it: nothing of it is published.{missing}"


def _describe_recovery_of_staged(checkpoint: Checkpoint) -> str:
    if checkpoint.gate is None or checkpoint.approved:
        return "What is staged is not published: recovery publishes it."
    if checkpoint.verdict is None:
        return "What is staged is not published: recovery asks its gate, then publishes or aborts it."
    if checkpoint.verdict["outcome"] == "failed":
        return "Its gate has failed what is staged: recovery aborts it."
    return "Its gate has passed what is staged, which is not published: recovery publishes it."


def describe_silence(checkpoint: Checkpoint) -> str:
    """Say that the owner of a checkpoint, which is no run of this Airflow, has ended or is taken for ended."""
    return f"its owner ({formatting.owner(checkpoint.owner)}) has ended, or gave no sign of life for too long"


def describe_approval(checkpoint: Checkpoint) -> str:
    """Return 'by ann: a known gap', and whether it has ended with the attempt that it was given to."""
    if checkpoint.approved is None:
        return ""
    text = f"by {checkpoint.approved['who']}: {checkpoint.approved['reason']}"
    if checkpoint.state is State.ABORTED:
        return f"{text} (ended with its attempt, and publishes nothing)"
    return text


def describe_needed_action(checkpoint: Checkpoint) -> str:
    """Say what a person has to do for a checkpoint, without secrets; empty if nothing."""
    if checkpoint.is_held:
        text = describe_hold(checkpoint)
    else:
        text = describe_refusal(checkpoint) or describe_stage_again(checkpoint)
    masked: str = redaction.hide_credentials(text)
    return masked


def describe_missing(checkpoint: Checkpoint) -> str:
    """Return ', missing in lake': which targets have lost it; empty where none has."""
    if not checkpoint.missing:
        return ""
    return f", missing in {', '.join(sorted(checkpoint.missing))}"


def describe_losses(pipeline: str, counts_by_sink: Mapping[str, int]) -> list[str]:
    """Return a line for each sink whose target lacks checkpoints."""
    lines = []
    for sink, lost in sorted(counts_by_sink.items()):
        lines.append(
            f"{pipeline}: the target of sink '{sink}' lacks {count(lost, 'checkpoint')}, as a person has accepted. To "
            f"write again what it lacks: onceonly repair {PIPELINE_FILE} {sink} --reason …"
        )
    return lines


def describe_unsettled(checkpoints: Sequence[Checkpoint]) -> str:
    """Return '2, the oldest is epoch 6', or 'epoch 6' where it is the only one; empty where all are settled.

    Args:
        checkpoints: the unsettled ones, the oldest first.
    """
    if not checkpoints:
        return ""
    oldest = f"epoch {checkpoints[0].epoch}"
    if len(checkpoints) == 1:
        return oldest
    return f"{len(checkpoints)}, the oldest is {oldest}"


def describe_range(range_: TopicRange) -> str:
    """Return '1 offset of 'flights' in 1 partition': offsets have gaps, so this is not a number of records."""
    text = f"{count(range_.offset_count, range_.unit)} of '{range_.topic}'"
    if range_.kind != KAFKA:
        return text
    partitions = sum(end > start for start, end in range_.partitions.values())
    return f"{text} in {count(partitions, 'partition')}"


def describe_coverage(checkpoint: Checkpoint) -> str:
    """Say what a checkpoint covers, in short: its ranges, or that it skips or takes back something."""
    if checkpoint.skipped is not None:
        return f"{_skipped_offsets(checkpoint)} (skipped by {checkpoint.owner}: {checkpoint.skipped})"
    if checkpoint.rewinds_to is not None:
        return f"takes back what came after epoch {checkpoint.rewinds_to}"
    if checkpoint.adopted is not None:
        return f"begins where {describe_adopted(checkpoint.adopted)} has ended (taken over by {checkpoint.owner})"
    if not has_data(checkpoint.ranges):
        return "nothing (no records)"
    if len(checkpoint.ranges) > MAX_TOPICS_SHOWN:
        offsets = sum(range_.offset_count for range_ in checkpoint.ranges)
        ranges = f"{count(offsets, 'offset')} of {count(len(checkpoint.ranges), 'topic')}"
    else:
        ranges = ", ".join(map(describe_range, checkpoint.ranges))
    ahead_text = describe_dated_ahead(checkpoint)
    if ahead_text:
        return f"{ranges}; {ahead_text}"
    return ranges


def describe_adopted(adopted: Mapping[str, Any]) -> str:
    """Name the job from which a pipeline takes over, by what the state table records of it."""
    if "group" in adopted:
        return f"consumer group '{adopted['group']}'"
    if adopted["published"] is None:
        return f"the query of {adopted['folder']}, before its first batch,"
    return f"batch {adopted['published']} of the query of {adopted['folder']}"


def describe_repair(checkpoint: Checkpoint) -> str:
    """Return 'lake of epoch 1, once more in late; asked for by ann: wrong rates'; empty if nobody asked for it so."""
    if not checkpoint.requested_by:
        return ""
    text = ", ".join(checkpoint.sinks)
    if checkpoint.repairs is not None:
        text += f" of epoch {checkpoint.repairs}"
    if checkpoint.again:
        text += f", once more in {', '.join(checkpoint.again)}"
    return f"{text}; asked for by {describe_askers(checkpoint)}"


def describe_askers(checkpoint: Checkpoint) -> str:
    """Return 'ann: wrong rates, then bob: she is ill', if bob has gone on with it; empty if nobody asked for it so."""
    if not checkpoint.requested_by:
        return ""
    wishes = (checkpoint.requested_by, *checkpoint.continued_by)
    return ", then ".join(f"{wish['who']}: {wish['reason']}" for wish in wishes)


def describe_dated_ahead(checkpoint: Checkpoint) -> str:
    """Return '1 record of topic 'flights' is dated in the future'; empty where none was passed over."""
    texts = []
    for range_ in checkpoint.ranges:
        if range_.ahead:
            texts.append(describe_future_records(range_.label, range_.ahead, range_.kind))
    return ", ".join(texts)


def describe_future_records(source: str, number: int | None, kind: str) -> str:
    """Return what `describe_dated_ahead` says of one source; None: more than were counted."""
    unit = "record"
    if kind != KAFKA:
        unit = SOURCE_WORDS[kind][1]
    if number is None:
        return f"many {unit}s of {source} are dated in the future"
    verb = "is" if number == 1 else "are"
    return f"{count(number, unit)} of {source} {verb} dated in the future"


def _skipped_offsets(checkpoint: Checkpoint) -> str:
    """Say which offsets a chained pipeline leaves out; 'nothing' for an interval, which is shown beside it."""
    if checkpoint.interval is not None:
        return "nothing"
    texts = []
    for range_ in checkpoint.ranges:
        for partition, (start, end) in sorted(range_.partitions.items()):
            if end > start:
                texts.append(f"{_name_partition(range_, partition)} {start:,} to {end:,}")
    return f"leaves out {', '.join(texts)}"


def _name_partition(range_: TopicRange, partition: int) -> str:
    """Return ''flights' partition 3 from'; without a partition where it is no topic, as only topics name theirs."""
    if range_.kind == KAFKA:
        return f"'{range_.topic}' partition {partition} from"
    return f"'{range_.topic}' from {range_.unit}"


def describe_bad_records(checkpoint: Checkpoint) -> str:
    """Say how many, and whose: "12 of 1,204 records (10 of 'orders', 2 by the transform)"."""
    if not checkpoint.bad:
        return ""
    parts = []
    for topic, undecoded in sorted(checkpoint.bad["undecoded"].items()):
        if undecoded:
            parts.append(f"{undecoded:,} of '{topic}'")
    rejected = checkpoint.bad["rejected"]
    if rejected:
        parts.append(f"{rejected:,} by the transform")
    total = f"{checkpoint.bad_records:,} of {count(checkpoint.bad['records'], 'record')}"
    if parts:
        return f"{total} ({', '.join(parts)})"
    return total


def describe_schemas(checkpoint: Checkpoint) -> str:
    """Return the registered schemas of its records: "orders value: ids 1, 2, read as orders-value 2 (id 5)"."""
    texts = []
    for topic, parts in sorted(checkpoint.schemas.items()):
        for part, pins in sorted(parts.items()):
            texts.append(f"{topic} {part}: {_schema_ids(pins)}")
    return "; ".join(texts)


def _schema_ids(pins: Mapping[str, Any]) -> str:
    """Return the ids that the records were written with, and the schema that they are read as."""
    ids = sorted(map(int, pins["writers"]))
    if len(ids) == 1:
        text = f"id {ids[0]}"
    elif ids:
        text = f"ids {', '.join(map(str, ids))}"
    else:
        text = "no ids"
    reader = pins.get("reader")
    if reader:
        text += f", read as {reader['subject']} {reader['version']} (id {reader['id']})"
    return text


def describe_upstream(checkpoint: Checkpoint) -> str:
    """Return 'flights epoch 12': the checkpoints of other pipelines on which this one stands."""
    texts = []
    for name, epochs in checkpoint.after.items():
        numbers = ", ".join(map(str, epochs)) or "none yet"
        texts.append(f"{name} epoch {numbers}")
    return "; ".join(texts)


def describe_staged_rows(handle: Mapping[str, Any]) -> str:
    """Return '6,000 rows, 1.2 MB, 30 files', as far as the sink counts them, and the note of its handle."""
    amounts = [_row_count(handle)]
    if "bytes" in handle:
        amounts.append(format_bytes(handle["bytes"]))
    amounts += _piece_counts(handle)
    text = ", ".join(amounts)
    if "note" in handle:
        text += f"; {handle['note']}"
    return text


def _row_count(handle: Mapping[str, Any]) -> str:
    """Return '6,000 rows', or of a sink that counts something else its own unit."""
    if handle.get("rows") is None:
        return "rows not counted"
    return count(handle["rows"], str(handle.get("unit", "row")))


def _piece_counts(handle: Mapping[str, Any]) -> list[str]:
    """Return in how many files the rows are, or in how many transactions that are open in Kafka, or both."""
    files, parts = handle.get("files"), handle.get("parts")
    counts = []
    if parts is not None:
        open_transactions = sum(bool(part["tx"]) for part in parts)
        counts.append(count(open_transactions, "open transaction"))
    if files is not None:
        counts.append(count(files if isinstance(files, int) else len(files), "file"))
    return counts


def describe_target(handle: Mapping[str, Any]) -> str:
    """Say where the rows go: a table's or folder's place, topics, or what the sink itself calls its target."""
    if "topics" in handle:
        return ", ".join(handle["topics"])
    return formatting.place(str(handle.get("uri") or handle.get("target") or handle.get("kind") or "?"))


def describe_judgement(body: Mapping[str, Any] | None) -> list[str]:
    """Return 'passed', 'sink delays: 3 checks on 40 rows in process', and each check that is not ok.

    Args:
        body: of the row that recorded the verdict; None: no gate has judged the attempt.
    """
    if body is None:
        return ["no verdict"]
    sink_lines, failure_lines = [], []
    for sink, report in body["sinks"].items():
        examined = formatting.count_rows({sink: report["rows"]})
        sink_lines.append(f"{sink}: {count(len(report['checks']), 'check')} on {examined}, {report['path']}")
        for check in report["checks"]:
            if not check["ok"]:
                failure_lines.append(f"{check['severity']}: {check['what']} ({check['observed']})")
    return [body["outcome"], *sink_lines, *failure_lines]


def describe_transition(checkpoint: Checkpoint, row: Row) -> Iterator[str]:
    """Yield what to log once `row` is recorded and has made `checkpoint` what it is: a line, and one per sink."""
    yield f"{checkpoint.pipeline} epoch {checkpoint.epoch}: {_describe_event(checkpoint, row)}"
    if row.event is Event.STAGED:
        yield from _describe_staged_sinks(checkpoint)
    if row.event is Event.VERDICT and checkpoint.is_held:
        yield describe_hold(checkpoint)


def describe_code(claim: Claim) -> str:
    """Return 'git 3f2a1b9c0d1e, changed since; jobs/ and schemas/ 1a2b…'; '-' where nothing is known of it."""
    code = claim.code or {}
    parts = []
    if "version" in code:
        version = GIT_COMMIT.sub(r"\1", code["version"])
        if code.get("clean") is False:
            version += ", changed since"
        parts.append(version)
    if "digest" in code:
        parts.append(f"jobs/ and schemas/ {code['digest']}")
    return "; ".join(parts) or "-"


def describe_other_code(checkpoint: Checkpoint) -> str:
    """Say that attempts of a checkpoint were made by different code; empty if they were not, or it is not known."""
    attempts_by_code: dict[str, list[int]] = {}
    for attempt, claim in sorted(checkpoint.claims.items()):
        if claim.code:
            key = str(claim.code.get("digest") or claim.code.get("version"))
            attempts_by_code.setdefault(key, []).append(attempt)
    if len(attempts_by_code) < 2:
        return ""
    groups = [" and ".join(map(str, attempts)) for attempts in attempts_by_code.values()]
    return f"Its attempts were made by different code: {', then '.join(groups)}. The rows are those of the last one."


def _name_event(row: Row) -> str:
    """Return what the log calls the event of a row. REPLACED is said of a handle, and not of rows."""
    if row.event is not Event.REPLACED:
        return str(row.event.value)
    return "resolved" if "verdict" in row.body else "new transaction for"


def _describe_event(checkpoint: Checkpoint, row: Row) -> str:
    event = _name_event(row)
    match row.event:
        case Event.EMPTY if checkpoint.skipped is not None:
            return f"skipped, {checkpoint.skipped}"
        case Event.PLANNED | Event.EMPTY:
            return f"{event}, {_list_ranges(checkpoint)}"
        case Event.CLAIMED:
            return f"{event}, attempt {row.attempt} by {checkpoint.claims[row.attempt].worker}"
        case Event.STAGED:
            return f"{event}, attempt {row.attempt}"
        case Event.VERDICT:
            return f"{event}, {row.body['outcome']}, attempt {row.attempt}"
        case Event.APPROVED:
            return f"{event} by {row.body['who']}, {row.body['reason']}"
        case Event.COMMITTING | Event.REWOUND:
            return f"{event}, decision {row.decision}"
        case Event.ABORTING:
            return f"{event}, {checkpoint.reason or 'no reason given'}"
        case Event.MISSING | Event.FOUND:
            return f"{event} in {row.sink}, recorded by {row.body['who']}: {row.body['reason']}"
    return f"{event} {row.sink or ''}".rstrip()


def _list_ranges(checkpoint: Checkpoint) -> str:
    """Return '5 offsets of topic flights, 2 versions of table rates'; of a repair also what it is for."""
    texts = []
    for range_ in checkpoint.ranges:
        texts.append(f"{count(range_.offset_count, range_.unit)} of {range_.word} {range_.topic}")
    if checkpoint.adopted is not None:
        texts.append(f"taken over from {describe_adopted(checkpoint.adopted)}")
    if checkpoint.requested_by:
        texts.append(f"for {describe_repair(checkpoint)}")
    return ", ".join(texts)


def _describe_staged_sinks(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield a line for each sink, and one for bad records if the checkpoint counts them."""
    for name, handle in checkpoint.handles.items():
        yield f"  sink {name}: {describe_staged_rows(handle)}"
    if checkpoint.bad:
        yield f"  bad: {describe_bad_records(checkpoint)}"
