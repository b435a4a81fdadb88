"""onceonly describe, lineage: everything that is recorded of one checkpoint, and which offsets its rows come from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.padding import Padding
from rich.text import Text
from rich.tree import Tree

from onceonly import redaction
from onceonly.checkpoint.data_docs import find_address
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import SOURCE_WORDS
from onceonly.cli import console
from onceonly.cli.app import json_option, print_json
from onceonly.counts import count
from onceonly.errors import InvalidPipeline
from onceonly.runtime import pipeline_file
from onceonly.settings import Settings
from onceonly.views import descriptions, formatting, provenance, queries
from onceonly.views.provenance import Superseded
from onceonly.views.story import Part, Story, describe_part, how_to_complete, list_lost, read_story, story_json

if TYPE_CHECKING:
    from onceonly.statetable.table import StateTable

MAX_DRAWN_CHECKPOINTS = 10  # of one pipeline in its lineage, the newest
IN_FORCE = "✓"
SEVERITIES = {"critical": "red", "warning": "yellow", "info": "dim"}


@click.command(short_help="Everything recorded about one checkpoint.")
@click.argument("pipeline")
@click.argument("epoch", type=int)
@json_option
def describe(pipeline: str, epoch: int, as_json: bool) -> None:
    """Everything recorded about checkpoint EPOCH of PIPELINE: what it covers, its attempts, handles and outcome.

    \b
    --json prints "state_table", "state_table_from", the keys of a checkpoint in
    `onceonly status PIPELINE --json`, and "owners", "attempts": [{"attempt", "worker", "nonce", "code"}],
    "handles", "in_doubt", "published", "given_up", "missing_by_sink", "definition",
    "refused": {"sink", "code", "what", "why", "todo"},
    "verdict": {"outcome", "sinks", "docs", "by"}, "approved": {"who", "reason", "seen"},
    "schemas": by source, the registered schemas that its records are decoded by,
    "timeline": [{"at", "event", "attempt", "owner", "sink", "decision", "detail"}],
    "bad_records": {"records", "undecoded" (by topic), "rejected" (by the transform)},
    "replaced_by", "rewound_by": a later epoch that has taken these rows out,
    "story": all checkpoints of the same records, the oldest first: [{"epoch", "state",
    "planned_at", "requested_by", "continued_by", "sinks": by sink {"did" (written, replaced, once more,
    added, kept, missing, given up, aborted, pending), "earlier" (the epochs whose
    rows were in force before), "rows", "in_force"}}],
    "in_force": by sink, the epochs whose rows it shows, and
    "lacking": the sinks that show none, though others do.
    """
    settings = Settings.from_env()
    state = queries.require_state_table(settings)
    checkpoint = queries.require_checkpoint(state, pipeline, epoch)
    timeline, later = queries.timeline(state, checkpoint), provenance.find_superseded(state, [checkpoint])
    story = read_story(state, checkpoint)
    if as_json:
        everything = queries.state_table_json(settings) | queries.full_json(checkpoint, timeline)
        everything |= provenance.superseded_json(later, epoch)
        return print_json(redaction.hide_credentials(everything | story_json(story)))
    out = console.open_console()
    print_checkpoint(out, checkpoint, later.get(epoch))
    _print_story(out, story, epoch, settings)
    _print_timeline(out, timeline)
    _print_actions(out, checkpoint)
    out.print(f"\n{queries.describe_state_table(settings)}", style="dim", markup=False)


def print_checkpoint(out: Console, checkpoint: Checkpoint, later: Superseded | None = None) -> None:
    """Print what to know before acting on it. `later`: what later checkpoints have made of its rows."""
    title = f"{checkpoint.pipeline} epoch {checkpoint.epoch}  "
    out.print(Text.assemble((title, "bold"), _state_text(checkpoint, later)))
    for name, value in _facts(checkpoint).items():
        if value:
            out.print(Text.assemble((f"  {name:<15}", "dim"), value))
    advice = descriptions.describe_needed_action(checkpoint)
    if advice:
        out.print(Text(f"  {advice}", "yellow"))
    _print_offsets(out, checkpoint)
    _print_attempts(out, checkpoint)
    _print_verdict(out, checkpoint)
    _print_sinks(out, checkpoint)


def _facts(checkpoint: Checkpoint) -> dict[str, str]:
    """Return facts by name; an empty one is not shown."""
    return {
        "interval": str(checkpoint.interval) if checkpoint.interval else "",
        "covers": descriptions.describe_coverage(checkpoint),
        "after": descriptions.describe_upstream(checkpoint),
        "rows": formatting.rows(checkpoint),
        "bad records": descriptions.describe_bad_records(checkpoint),
        "decision": formatting.number(checkpoint.decision),
        "owner": checkpoint.owner,
        "earlier owners": ", ".join(dict.fromkeys(formatting.owner(key) for key in checkpoint.owners[:-1])),
        "planned": f"{formatting.clock(checkpoint.planned_at)} UTC, {formatting.age(checkpoint.planned_at)} ago",
        "decoded by": descriptions.describe_schemas(checkpoint),
        "transform": str(checkpoint.definition.json.get("transform", "")),
        "reason" if checkpoint.rewinds_to else "last abort": checkpoint.reason or "",
        "goes back to": _describe_epoch(checkpoint.rewinds_to),
        "approved": descriptions.describe_approval(checkpoint),
        "replaces": _describe_epoch(checkpoint.replaces),
        "writes": descriptions.describe_repair(checkpoint),
        "skipped": checkpoint.skipped or "",
        "as of row": f"{checkpoint.changed_seq} (--seen {checkpoint.changed_seq})",
    }


def _describe_epoch(epoch: int | None) -> str:
    return f"epoch {epoch}" if epoch else ""


def _state_text(checkpoint: Checkpoint, later: Superseded | None) -> Text:
    text = console.state_text(checkpoint)
    if later:
        text.append(f", {later}", "dim")
    text.append(descriptions.describe_missing(checkpoint), "red")
    if checkpoint.waiting and not checkpoint.state.is_settled and checkpoint.decision:
        text.append(f", waiting: {', '.join(checkpoint.waiting)}", "yellow")
    return text


def _print_offsets(out: Console, checkpoint: Checkpoint) -> None:
    table = console.make_table(_source_column(checkpoint), "partition", "from", "to", right=("partition", "from", "to"))
    for range_ in checkpoint.ranges:
        for partition, (start, end) in sorted(range_.partitions.items()):
            table.add_row(range_.topic, str(partition), f"{start:,}", f"{end:,}")
    _print_section(out, "Offsets (the last one not included)", table)


def _source_column(checkpoint: Checkpoint) -> str:
    """Return 'topic', 'table', 'topic, table': what the checkpoint reads."""
    return ", ".join(dict.fromkeys(range_.word for range_ in checkpoint.ranges)) or "topic"


def _print_attempts(out: Console, checkpoint: Checkpoint) -> None:
    table = console.make_table("attempt", "worker", "nonce", "code", right=("attempt",))
    for attempt, claim in sorted(checkpoint.claims.items()):
        table.add_row(str(attempt), claim.worker, claim.nonce, descriptions.describe_code(claim))
    if checkpoint.claims:
        _print_section(out, "Attempts", table)
    difference = descriptions.describe_other_code(checkpoint)
    if difference:
        out.print(Text(f"  {difference}", "yellow"))


def _print_verdict(out: Console, checkpoint: Checkpoint) -> None:
    verdict = checkpoint.verdict
    if verdict is None:
        return
    table = console.make_table("sink", "check", "", "observed")
    examined = []
    for sink, findings in verdict["sinks"].items():
        examined.append(f"{sink}: {formatting.count_rows({sink: findings['rows']})}, {findings['path']}")
        for check in findings["checks"]:
            table.add_row(sink, Text(check["what"]), _check_result(check), Text(check["observed"]))
    outcome = verdict["outcome"]
    if checkpoint.is_held:
        outcome = f"{outcome}, held until somebody approves or aborts it"
    _print_section(out, f"Gate: {outcome} (by {formatting.owner(verdict['by'])}; {', '.join(examined)})", table)
    if verdict["docs"]:
        places = f"in Airflow {queries.docs_page(checkpoint)}; files {find_address(checkpoint)}"
        out.print(Text(f"  Data Docs: {places}", "dim"))


def _check_result(check: Mapping[str, Any]) -> Text:
    if check["ok"]:
        return Text("ok", "green")
    return Text(check["severity"], SEVERITIES[check["severity"]])


def _print_sinks(out: Console, checkpoint: Checkpoint) -> None:
    for sink, handle in checkpoint.handles.items():
        table = console.make_table("", "")
        table.show_header = False
        for key, value in redaction.hide_credentials(dict(handle)).items():
            for line in _value_lines(key, value):
                table.add_row(Text(key, "dim"), line)
        title = f"Sink '{sink}': {descriptions.describe_staged_rows(handle)}, {_outcome(checkpoint, sink)}"
        _print_section(out, title, table)


def _value_lines(key: str, value: Any) -> list[str]:
    """Return a line for each part of a Kafka sink's handle, else one."""
    if key == "parts":
        return [_describe_part(part) for part in value] or ["none: no rows"]
    return [value if isinstance(value, str) else json.dumps(value)]


def _describe_part(part: Mapping[str, Any]) -> str:
    spool = f"{count(part['rows'], 'row')}, {part['spool']}"
    tx = part["tx"]
    if not tx:
        return f"{spool}, not in Kafka yet"
    partitions = ", ".join(f"{topic}-{number} below {end:,}" for topic, number, _, end in tx["partitions"])
    return f"{spool}, {tx['id'][-10:]} of producer {tx['producer_id']}: {partitions}"


def _outcome(checkpoint: Checkpoint, sink: str) -> str:
    """Return how the checkpoint's transaction for a sink ended, or what it waits for."""
    if sink in checkpoint.missing:
        return f"MISSING in its target, {_describe_detail(checkpoint.missing[sink])}"
    if sink in checkpoint.published:
        return f"published {_describe_detail(checkpoint.published[sink])}".strip()
    if sink in checkpoint.given_up:
        return f"given up {_describe_detail(checkpoint.given_up[sink])}"
    if sink in checkpoint.in_doubt:
        return f"IN DOUBT: {checkpoint.in_doubt[sink]['why']}"
    if checkpoint.decision:
        return "waiting to be published"
    target = descriptions.describe_target(checkpoint.handles[sink])
    if checkpoint.state is State.ABORTED:
        return f"discarded, not published to {target}"
    return f"staged for {target}"


def _print_story(out: Console, story: Story, epoch: int, settings: Settings) -> None:
    """Print in one picture what the checkpoints of the same records have done in each sink."""
    if not story.has_repairs:
        return
    table = console.make_table("epoch", "state", *story.sinks, "asked for by", right=("epoch",))
    for checkpoint in story.checkpoints:
        cells = [_part_text(story.part(checkpoint.epoch, sink), checkpoint) for sink in story.sinks]
        number = Text(str(checkpoint.epoch), "bold" if checkpoint.epoch == epoch else "")
        table.add_row(number, console.state_text(checkpoint), *cells, Text(descriptions.describe_askers(checkpoint)))
    _print_section(out, f"Sink by sink ({IN_FORCE} in force)", table)
    notices = []
    if story.lacking:
        notices.append(f"No rows are in force in {_quote(story.lacking)}.")
    if lost := list_lost(story):
        notices.append(f"The last rows of {_quote(lost)} are not there; what was there before them is in force.")
    if notices:
        advice = pipeline_file.name_pipeline(how_to_complete(story), settings.project, story.checkpoints[0].pipeline)
        out.print(Padding(Text(" ".join([*notices, advice]), "yellow"), (0, 0, 0, 2)))


def _quote(sinks: Sequence[str]) -> str:
    return ", ".join(f"'{sink}'" for sink in sinks)


def _part_text(part: Part | None, checkpoint: Checkpoint) -> Text:
    if part is not None and part.is_in_force:
        return Text(f"{IN_FORCE} {describe_part(part, checkpoint)}", "green")
    return Text(describe_part(part, checkpoint) or "-", "dim")


def _print_timeline(out: Console, timeline: list[dict[str, Any]]) -> None:
    rows = []
    for row in timeline:
        words = [row["sink"] or "", _describe_detail(row["detail"])]
        if row["owner"]:
            words.append(f"by {formatting.owner(row['owner'])}")
        at = row["at"].replace("T", " ").rstrip("Z")
        rows.append([at, formatting.event(row), str(row["attempt"]), " ".join(words).strip()])
    names = ("at (UTC)", "event", "attempt", "")
    _print_section(out, "Timeline", console.make_table_of_lines(names, rows, right=("attempt",), indent=2))


def _print_actions(out: Console, checkpoint: Checkpoint) -> None:
    commands = descriptions.list_actions(checkpoint)
    if commands:
        _print_section(out, "What you can do", Text("\n".join(commands)))


def _print_section(out: Console, title: str, body: Any) -> None:
    out.print(Text(f"\n{title}", "bold"))
    out.print(Padding(body, (0, 0, 0, 2), expand=False))


def _describe_detail(detail: Mapping[str, Any]) -> str:
    """Return 'key value, key value', without objects and without what is empty."""
    words = []
    for key, value in detail.items():
        if not isinstance(value, Mapping) and value not in (None, False, ""):
            words.append(f"{key} {value}")
    return ", ".join(words)


@click.command(short_help="Which offsets published rows come from.")
@click.argument("pipeline")
@click.option("--checkpoint", "epoch", type=int, help="Its epoch; by default that of the last one that is committed.")
@json_option
def lineage(pipeline: str, epoch: int | None, as_json: bool) -> None:
    """Which offsets the rows of a checkpoint of PIPELINE come from, down to the topics, through the pipelines that
    it comes after (onceonly help chain).

    \b
    --json prints one object: "state_table", "state_table_from" (the variable that
    says so, or null), "pipeline", "epoch", "state", "interval",
    "rows_by_sink", "replaced_by", "rewound_by" (epochs or null),
    "reads": [{"topic", "topic_id", "partitions": {number: [start, end]}}], and
    of a table or folder that another pipeline has written "published_by", "sink" and
    "checkpoints": such objects of that pipeline. Of PIPELINE also
    "read_by": [{"pipeline", "epoch"}], the checkpoints that depend on this one.
    """
    settings = Settings.from_env()
    state = queries.require_state_table(settings)
    queries.check_pipeline_exists(state, pipeline)
    checkpoint = state.view(pipeline).require(epoch) if epoch else _require_last_committed(state, pipeline)
    node = provenance.trace_checkpoint(state, checkpoint)
    if as_json:
        return print_json({**queries.state_table_json(settings), **node})
    out = console.open_console()
    out.print(_tree(node), soft_wrap=False, overflow="fold")
    readers = [_name_node(reader) for reader in node["read_by"]]
    if readers:
        out.print(Text(f"read by {', '.join(readers)}", "dim"))
    out.print(queries.describe_state_table(settings), style="dim", markup=False)


def _require_last_committed(state_table: StateTable, pipeline: str) -> Checkpoint:
    """Return the newest committed checkpoint that is no rewind."""
    view = state_table.view(pipeline)
    for epoch in range(view.head.epoch, 0, -1):
        checkpoint = view.checkpoint(epoch)
        if checkpoint and checkpoint.state is State.COMMITTED and checkpoint.rewinds_to is None:
            return checkpoint
    raise InvalidPipeline(
        f"{pipeline} has no committed checkpoint.",
        todo=f"See what there is: onceonly status {pipeline}",
        code="nothing-committed",
    )


def _tree(node: Mapping[str, Any], into: Tree | None = None) -> Tree:
    """Return a branch for a checkpoint with all that it has read, added to `into` if there is one."""
    line = Text.assemble((_name_node(node), "bold"), f"  {_list_node_facts(node)}")
    tree = into.add(line) if into else Tree(line, guide_style="dim")
    for read in node["reads"]:
        _add_read(tree, read)
    return tree


def _name_node(node: Mapping[str, Any]) -> str:
    """Name a checkpoint; of a repair also the one whose records these are."""
    repaired = f" (repairs epoch {node['repairs']})" if "repairs" in node else ""
    return f"{node['pipeline']} epoch {node['epoch']}{repaired}"


def _add_read(tree: Tree, read: Mapping[str, Any]) -> None:
    if "checkpoints" not in read:
        for partition, (start, end) in read["partitions"].items():
            tree.add(Text(f"{read['topic']} partition {partition}: {_span(start, end)}"))
        return
    unit, spans = (
        SOURCE_WORDS[read["kind"]][1],
        ", ".join(_span(start, end) for start, end in read["partitions"].values()),
    )
    branch = tree.add(Text(f"{read['topic']}: {unit}s {spans}, by sink '{read['sink']}' of {read['published_by']}"))
    nodes = read["checkpoints"]
    older_count = len(nodes) - MAX_DRAWN_CHECKPOINTS
    if older_count > 0:
        branch.add(Text(f"{formatting.number(older_count)} older ones (--json has them)", "dim"))
    for node in nodes[-MAX_DRAWN_CHECKPOINTS:]:
        _tree(node, branch)


def _list_node_facts(node: Mapping[str, Any]) -> str:
    interval, rows_by_sink = node["interval"], node["rows_by_sink"]
    facts = []
    if interval:
        facts.append(f"[{interval['start']}, {interval['end']})")
    if rows_by_sink:
        facts.append(formatting.count_rows(rows_by_sink))
    if node["state"] != State.COMMITTED.value:
        facts.append(node["state"])
    for word in ("replaced", "rewound"):
        epoch = node[f"{word}_by"]
        if epoch:
            facts.append(f"{word} by epoch {epoch}")
    return ", ".join(facts)


def _span(start: int, end: int) -> str:
    """Return the offsets of a half-open range, in words."""
    if end == start:
        return f"none, at {start:,}"
    if end == start + 1:
        return f"{start:,}"
    return f"{start:,} to {end - 1:,}"
