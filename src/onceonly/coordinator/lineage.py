"""Whether this state table is the one that targets and consumer groups know.

A table that was restored from an older copy, or created again after one was lost, would take decisions again that are
published, and read their records again. What targets show is read first and the state table afterwards: so a
checkpoint that is being committed meanwhile cannot make it look behind.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence

from onceonly.checkpoint.interfaces import Parts, Source
from onceonly.checkpoint.sink import Sink, Trace, Traced
from onceonly.errors import InvalidPipeline, OutcomeUnknown
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.row_format import Head
from onceonly.statetable.table import StateTable
from onceonly.statetable.view import View


def check_plan(state: StateTable, seen: View, pipeline: Pipeline, parts: Parts, sources: Mapping[str, Source]) -> None:
    """Refuse a state table that a consumer group is ahead of, and a first checkpoint beside traces of earlier ones.

    Raises:
        InvalidPipeline: with the command that continues from there.
    """
    found = _of_sources(sources, pipeline.name)
    if not seen.head.epoch:
        found += _of_sinks(parts, pipeline)
    if _refusal(state, pipeline, found, seen.head):
        _refuse(state, pipeline, parts, sources)


def check_stage(
    state: StateTable, pipeline: Pipeline, parts: Parts, seen: View, sinks: Iterable[Sink] | None = None
) -> None:
    """Refuse a state table that a target is ahead of, before anything is staged for it. Raises as `check_plan`.

    Args:
        seen: an earlier view. Decisions only grow: where it is not behind, none since then is.
        sinks: those of the pipeline, if they are available.
    """
    found = _of_sinks(parts, pipeline, sinks)
    if _refusal(state, pipeline, found, seen.head):
        _refuse(state, pipeline, parts, parts.sources(pipeline))


def traces(parts: Parts, pipeline: Pipeline, sources: Mapping[str, Source]) -> list[Trace]:
    """All that targets and consumer groups show of this pipeline."""
    return _of_sources(sources, pipeline.name) + _of_sinks(parts, pipeline)


def _of_sources(sources: Mapping[str, Source], name: str) -> list[Trace]:
    return [trace for source in sources.values() for trace in _of_source(source, name)]


def _of_source(source: Source, name: str) -> list[Trace]:
    """A group that cannot be read stops no plan; that it was not looked at is a warning."""
    try:
        return source.traces(name)
    except OutcomeUnknown as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)
        return []


def _of_sinks(parts: Parts, pipeline: Pipeline, sinks: Iterable[Sink] | None = None) -> list[Trace]:
    sinks = sinks or [parts.sink(pipeline, sink.name) for sink in pipeline.sinks]
    return [trace for sink in sinks if isinstance(sink, Traced) for trace in sink.traces(pipeline.name)]


def _refuse(state: StateTable, pipeline: Pipeline, parts: Parts, sources: Mapping[str, Source]) -> None:
    """Look again at everything, the state table last, and say all of it."""
    found = traces(parts, pipeline, sources)
    refusal = _refusal(state, pipeline, found, state.view(pipeline.name).head)
    if refusal:
        raise refusal


def _refusal(state: StateTable, pipeline: Pipeline, found: Sequence[Trace], head: Head) -> InvalidPipeline | None:
    mine = [trace for trace in found if trace.state_id == state.id]
    if any(trace.decision > head.decision for trace in mine):
        return _behind(state, pipeline, mine, head)
    return _not_first(state, pipeline, found) if found and not head.epoch else None


def _behind(state: StateTable, pipeline: Pipeline, mine: Sequence[Trace], head: Head) -> InvalidPipeline:
    return InvalidPipeline(
        f"{pipeline.name}: the state table at {state.uri} is behind its targets.",
        f"It ends at decision {head.decision}; {_said(mine)}. Was it restored from an older copy?",
        "Nothing was published. Restore the newest state table. If there is none, continue from what the targets "
        f"have: {_command(pipeline, mine)} (docs/operations.md, Backup and restore).",
    )


def _not_first(state: StateTable, pipeline: Pipeline, found: Sequence[Trace]) -> InvalidPipeline:
    return InvalidPipeline(
        f"{pipeline.name}: it has no checkpoint in the state table at {state.uri}, and has published before.",
        f"{_said(found)}. Was the command given in another folder, is a volume not mounted, or is this a second "
        "environment? It would publish everything again.",
        "Point ONCEONLY_STATE or ONCEONLY_HOME to that state table. To publish again, give the pipeline a new name and "
        f"targets. If that table is lost: {_command(pipeline, found)} (docs/operations.md, Backup and restore). "
        "Nothing was published.",
    )


def _said(found: Sequence[Trace]) -> str:
    return "; ".join(
        f"{trace.where} shows decision {trace.decision} of state table {trace.state_id}"
        if trace.state_id
        else f"{trace.where} shows offsets of an unknown state table"
        for trace in found
    )


def _command(pipeline: Pipeline, found: Sequence[Trace]) -> str:
    """To copy, as far as it is known: offsets only where all that is shown agrees on the decision they belong to."""
    last = max(found, key=lambda trace: trace.decision)
    agreed = all((trace.state_id, trace.decision) == (last.state_id, last.decision) for trace in found)
    if pipeline.mode == "interval":
        where = ["--interval START END"]
    else:
        where = _ends(found) if agreed and _ends(found) else ["--ends TOPIC:PARTITION=OFFSET"]
    return f"onceonly state forward FILE.py:NAME --decision {max(last.decision, 1)} {' '.join(where)} --reason …"


def _ends(found: Sequence[Trace]) -> list[str]:
    shown = ((topic, ends) for trace in found for topic, ends in sorted(trace.ends.items()))
    return [f"--ends {topic}:{partition}={end}" for topic, ends in shown for partition, end in sorted(ends.items())]
