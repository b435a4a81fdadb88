"""Whether this state table is the one that targets and consumer groups know, and knows the pipeline by this name.

A table that was restored from an older copy, or created again after one was lost, would take decisions again that are
published, and read their records again. What targets show is read first and the state table afterwards: so a
checkpoint that is being committed meanwhile cannot make it look behind.

A pipeline's name is its identity: under a new name it would read everything again, into the same targets.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onceonly.checkpoint.interfaces import Parts, Source
from onceonly.checkpoint.offsets import Ranges
from onceonly.checkpoint.sink import DecisionTraces, Sink, Trace
from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline, OutcomeUnknown
from onceonly.json_values.text import canonical
from onceonly.pipeline.definition import Pipeline, find_source
from onceonly.statetable.row_format import Head
from onceonly.statetable.table import StateTable
from onceonly.statetable.view import View


def check_plan(
    state_table: StateTable, view: View, pipeline: Pipeline, parts: Parts, sources: Mapping[str, Source]
) -> None:
    """Refuse a state table that a consumer group is ahead of, and a first checkpoint beside traces of earlier ones.

    Raises:
        InvalidPipeline: with the command that continues from there.
    """
    traces = _traces_of_sources(sources, pipeline.name)
    if not view.head.epoch:
        traces += _traces_of_sinks(parts, pipeline)
    if _find_refusal(state_table, pipeline, traces, view.head):
        _refuse(state_table, pipeline, parts, sources)


def check_first_plan(state_table: StateTable | None, pipeline: Pipeline, parts: Parts) -> None:
    """Refuse, before any work, what the first plan of a pipeline would refuse. Raises as `check_plan`.

    Args:
        state_table: None: there is none yet.
    """
    sources = parts.sources(pipeline)
    if state_table is not None:
        return check_plan(state_table, state_table.view(pipeline.name), pipeline, parts, sources)
    traces = list_traces(parts, pipeline, sources)
    if traces:
        raise _not_first_error("in this state table, which the first run would create", pipeline, traces)


def check_stage(
    state_table: StateTable, pipeline: Pipeline, parts: Parts, view: View, sinks: Iterable[Sink] | None = None
) -> None:
    """Refuse a state table that a target is ahead of, before anything is staged for it. Raises as `check_plan`.

    Args:
        view: an earlier view. Decisions only grow: where it is not behind, none since then is.
        sinks: those of the pipeline, if they are available.
    """
    traces = _traces_of_sinks(parts, pipeline, sinks)
    if _find_refusal(state_table, pipeline, traces, view.head):
        _refuse(state_table, pipeline, parts, parts.sources(pipeline))


def list_traces(parts: Parts, pipeline: Pipeline, sources: Mapping[str, Source]) -> list[Trace]:
    """List all that targets and consumer groups show of this pipeline."""
    return _traces_of_sources(sources, pipeline.name) + _traces_of_sinks(parts, pipeline)


def _traces_of_sources(sources: Mapping[str, Source], name: str) -> list[Trace]:
    traces = []
    for source in sources.values():
        traces += _traces_of_source(source, name)
    return traces


def _traces_of_source(source: Source, name: str) -> list[Trace]:
    """Read what a source's consumer group shows.

    A group that cannot be read stops no plan; that it was not looked at is a warning.
    """
    try:
        return source.traces(name)
    except OutcomeUnknown as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)
        return []


def _traces_of_sinks(parts: Parts, pipeline: Pipeline, sinks: Iterable[Sink] | None = None) -> list[Trace]:
    sinks = sinks or [parts.sink(pipeline, sink.name) for sink in pipeline.sinks]
    traces = []
    for sink in sinks:
        if isinstance(sink, DecisionTraces):
            traces += sink.traces(pipeline.name)
    return traces


def _refuse(state_table: StateTable, pipeline: Pipeline, parts: Parts, sources: Mapping[str, Source]) -> None:
    """Refuse the state table after another look at everything, the state table last. The refusal says all of it.

    Nothing is raised if the second look shows no difference: a checkpoint was committed between the looks.
    """
    all_traces = list_traces(parts, pipeline, sources)
    refusal = _find_refusal(state_table, pipeline, all_traces, state_table.view(pipeline.name).head)
    if refusal:
        raise refusal


def _find_refusal(
    state_table: StateTable, pipeline: Pipeline, traces: Sequence[Trace], head: Head
) -> InvalidPipeline | None:
    """Return the refusal of a state table that is behind its targets, or new beside them; None: it is neither."""
    own = [trace for trace in traces if trace.state_id == state_table.id]
    if any(trace.decision > head.decision for trace in own):
        return _state_behind_error(state_table, pipeline, own, head)
    if traces and not head.epoch:
        return _not_first_error(f"in the state table at {state_table.uri} (id {state_table.id})", pipeline, traces)
    return None


def _state_behind_error(
    state_table: StateTable, pipeline: Pipeline, own: Sequence[Trace], head: Head
) -> InvalidPipeline:
    return InvalidPipeline(
        f"{pipeline.name}: the state table at {state_table.uri} is behind its targets.",
        f"It ends at decision {head.decision}; {_describe_traces(own)}. Was it restored from an older copy?",
        "Nothing was published. Restore the newest state table. If there is none, continue from what the targets "
        f"have: {_command_to_continue(pipeline, own)} ({name_page('operations', 'backup-and-restore')}).",
        code="state-behind",
    )


def _not_first_error(where: str, pipeline: Pipeline, traces: Sequence[Trace]) -> InvalidPipeline:
    return InvalidPipeline(
        f"{pipeline.name}: it has no checkpoint {where}, and has published before.",
        f"{_describe_traces(traces)}. Was the command given in another folder, is a volume not mounted, or is this a "
        "second environment? It would publish everything again.",
        "Point ONCEONLY_STATE or ONCEONLY_HOME to that state table: where that run had it, without a setting in "
        ".onceonly/state of its folder (targets show only the id). To publish again, give the pipeline a new name and "
        f"targets. If that table is lost: {_command_to_continue(pipeline, traces)} "
        f"({name_page('operations', 'backup-and-restore')}). "
        "Nothing was published.",
        code="published-before",
    )


def _describe_traces(traces: Sequence[Trace]) -> str:
    sentences = []
    for trace in traces:
        if trace.state_id:
            sentences.append(f"{trace.where} shows decision {trace.decision} of state table {trace.state_id}")
        else:
            sentences.append(f"{trace.where} shows offsets of an unknown state table")
    return "; ".join(sentences)


def _command_to_continue(pipeline: Pipeline, traces: Sequence[Trace]) -> str:
    """Write the command to copy, as far as it is known.

    Offsets are in it only where all that is shown agrees on the decision they belong to.
    """
    last = max(traces, key=lambda trace: trace.decision)
    if pipeline.mode == "interval":
        position = "--interval START END"
    else:
        position = (_agree_on(last, traces) and _end_options(traces)) or "--ends TOPIC:PARTITION=OFFSET"
    return f"onceonly state forward FILE.py:NAME --decision {max(last.decision, 1)} {position} --reason …"


def _agree_on(last: Trace, traces: Sequence[Trace]) -> bool:
    """Whether all traces are of the state table and the decision of that one."""
    return all((trace.state_id, trace.decision) == (last.state_id, last.decision) for trace in traces)


def _end_options(traces: Sequence[Trace]) -> str:
    options = []
    for trace in traces:
        for topic, ends in sorted(trace.ends.items()):
            for partition, end in sorted(ends.items()):
                options.append(f"--ends {topic}:{partition}={end}")
    return " ".join(options)


# ---- another name


def refuse_renamed(state_table: StateTable, view: View, pipeline: Pipeline, sources: Mapping[str, Source]) -> None:
    """Refuse the first checkpoint of what another pipeline of this state table has been doing.

    Raises:
        InvalidPipeline: one of another name reads the same topics, transforms them alike, and writes to the same place.
    """
    if view.head.epoch:
        return
    for name in state_table.pipelines():
        if name == pipeline.name:
            continue
        latest = state_table.view(name).latest
        if latest is None or _describe_work(latest.definition.json) != _describe_work(pipeline.to_json()):
            continue
        old = latest.definition.pipeline
        shared = _targets_with_duplicates(old) & _targets_with_duplicates(pipeline)
        if shared and _reads_same_logs(old, pipeline, latest.ranges, sources):
            raise InvalidPipeline(
                f"{pipeline.name}: it has no checkpoint yet, and does what '{name}' has done so far.",
                f"Both read {[source.input_name for source in pipeline.sources]} through {pipeline.transform} into "
                f"{', '.join(sorted(shared))}. Was '{name}' renamed? What it published would be published again.",
                f"Keep name='{name}' (a DAG may be called otherwise: dag_id=…), or name new targets. "
                "Nothing was written.",
                code="pipeline-renamed",
            )


def _describe_work(definition: Mapping[str, Any]) -> str:
    """Write what a pipeline reads and does, so that pipelines can be compared by it.

    Its sinks are not read: of a pipeline that does something else, they need not be installed here.
    """
    try:
        return _describe_work_json(definition)
    except (KeyError, TypeError, AttributeError):
        return _describe_work_json(Pipeline.from_json(definition).to_json())  # says what is wrong with it


def _describe_work_json(definition: Mapping[str, Any]) -> str:
    sources = definition["source"]
    if not isinstance(sources, list):
        sources = [sources]
    places = sorted(map(_locate_source, sources))
    return canonical([places, definition["transform"], definition["mode"]])


def _locate_source(source: Mapping[str, Any]) -> tuple[str, str]:
    """Return what identifies a source: of a table or folder its path, of a topic its name and brokers.

    Defaults may be left out.
    """
    if "path" in source:
        return source["path"], source["kind"]
    brokers = source.get("connection") or source.get("bootstrap") or ""
    return source.get("topic_pattern") or source["topic"], brokers


def _topic_in(old: Pipeline, new: Pipeline, topic: str) -> str:
    """Return what the new pipeline calls what the old one has read: both may name the same table differently."""
    path = getattr(find_source(old, topic), "path", None)
    if path:
        for source in new.sources:
            if getattr(source, "path", None) == path:
                return source.topic
    return topic


def _reads_same_logs(old: Pipeline, new: Pipeline, ranges: Ranges, sources: Mapping[str, Source]) -> bool:
    """Whether the sources of the new pipeline are those of which the old one has read these ranges."""
    for range_ in ranges:
        source = sources[_topic_in(old, new, range_.topic)]
        if source.log().topic_id != range_.topic_id:
            return False
    return True


def _targets_with_duplicates(pipeline: Pipeline) -> set[str]:
    """Return the targets that would have rows twice: what is merged a second time has no effect."""
    targets: set[str] = set()
    for sink in pipeline.sinks:
        if not sink.merges_changes():
            targets.update(sink.targets())
    return targets
