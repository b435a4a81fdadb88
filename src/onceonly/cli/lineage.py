"""onceonly lineage: which offsets the published rows of a checkpoint stand for, through the chain of pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from rich.text import Text
from rich.tree import Tree

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import WORDS
from onceonly.cli import console
from onceonly.cli.app import json_option, print_json
from onceonly.errors import InvalidPipeline
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable
from onceonly.views import formatting, provenance, queries

MAX_DRAWN_CHECKPOINTS = 10  # of one pipeline, the newest


@click.command(short_help="Which offsets published rows come from.")
@click.argument("pipeline")
@click.option("--checkpoint", "epoch", type=int, help="Its epoch; by default that of the last one that is committed.")
@json_option
def lineage(pipeline: str, epoch: int | None, as_json: bool) -> None:
    """Which offsets the rows of a checkpoint of PIPELINE come from, down to the topics, through the pipelines that
    it comes after (docs/how-to/chain.md).

    \b
    --json prints one object: "pipeline", "epoch", "state", "interval",
    "rows_by_sink", "replaced_by", "rewound_by" (epochs or null),
    "reads": [{"topic", "topic_id", "partitions": {number: [start, end]}}], and
    of a table or folder that another pipeline has written "published_by", "sink" and
    "checkpoints": such objects of that pipeline. Of PIPELINE also
    "read_by": [{"pipeline", "epoch"}], the checkpoints that depend on this one.
    """
    state = queries.require_state_table(Settings.from_env())
    queries.check_pipeline_exists(state, pipeline)
    checkpoint = state.view(pipeline).require(epoch) if epoch else _require_last_committed(state, pipeline)
    node = provenance.trace_checkpoint(state, checkpoint)
    if as_json:
        return print_json(node)
    out = console.open_console()
    out.print(_tree(node), soft_wrap=False, overflow="fold")
    readers = [f"{reader['pipeline']} epoch {reader['epoch']}" for reader in node["read_by"]]
    if readers:
        out.print(Text(f"read by {', '.join(readers)}", "dim"))


def _require_last_committed(state: StateTable, pipeline: str) -> Checkpoint:
    """Return the newest committed checkpoint that is no rewind."""
    view = state.view(pipeline)
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
    line = Text.assemble((f"{node['pipeline']} epoch {node['epoch']}", "bold"), f"  {_facts(node)}")
    tree = into.add(line) if into else Tree(line, guide_style="dim")
    for read in node["reads"]:
        _add_read(tree, read)
    return tree


def _add_read(tree: Tree, read: Mapping[str, Any]) -> None:
    if "checkpoints" not in read:
        for partition, (start, end) in read["partitions"].items():
            tree.add(Text(f"{read['topic']} partition {partition}: {_span(start, end)}"))
        return
    unit, spans = WORDS[read["kind"]][1], ", ".join(_span(start, end) for start, end in read["partitions"].values())
    branch = tree.add(Text(f"{read['topic']}: {unit}s {spans}, by sink '{read['sink']}' of {read['published_by']}"))
    nodes = read["checkpoints"]
    older_count = len(nodes) - MAX_DRAWN_CHECKPOINTS
    if older_count > 0:
        branch.add(Text(f"{formatting.number(older_count)} older ones (--json has them)", "dim"))
    for node in nodes[-MAX_DRAWN_CHECKPOINTS:]:
        _tree(node, branch)


def _facts(node: Mapping[str, Any]) -> str:
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
