"""What a pipeline publishes, as Airflow assets: a DAG can be scheduled on a table, a topic or a folder.

    DeltaSink, FileSink   the URI; an absolute path as file://…; a path below ONCEONLY_HOME as onceonly://…
    KafkaSink             kafka://<connection, first broker, or 'default'>/<topic>, one for each topic

An event says that something was published. It may come twice (a commit task that is cleared), and what recovery
published is announced by the recovery DAG: a consumer looks at `epoch` and `offsets`, and counts no events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from airflow.sdk import Asset, AssetAlias

from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import Interval
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sink_config import SinkConfig

RECOVERED = AssetAlias("onceonly_recovered")  # what the recovery DAG publishes is known only when it runs


def assets_of(sink: SinkConfig) -> list[Asset]:
    """The assets of one sink: none for application state, one for each topic, else what its config says."""
    return [Asset(name=uri, uri=uri) for uri in sink.asset_uris()]


def outlets(pipeline: Pipeline) -> list[Asset]:
    """Everything that the pipeline may publish, each once."""
    found = {asset.uri: asset for sink in pipeline.sinks for asset in assets_of(sink)}
    return list(found.values())


def inlets(pipeline: Pipeline) -> list[Asset]:
    """The tables that it reads: its DAG, scheduled on them, follows the DAGs that write them."""
    return [Asset(name=uri, uri=uri) for uri in pipeline.tables.values()]


def published(checkpoint: Checkpoint) -> Iterator[tuple[Asset, dict[str, Any]]]:
    """The assets that the checkpoint has reached, each with the extra of its event."""
    pipeline = Pipeline.from_json(checkpoint.definition)
    for name in checkpoint.published:
        extra = _extra(checkpoint, name)
        yield from ((asset, extra) for asset in assets_of(pipeline.sink(name)))


def announce(context: Any, checkpoint: Checkpoint, declared: Iterable[Any], keyed: bool = False) -> list[Any]:
    """Record the events of what is published, and return the outlets that remain: Airflow sends one for each outlet.

    Args:
        declared: the task's outlets; those that are not of this pipeline's making stay as they are.
        keyed: give the events of an interval its partition key.
    """
    ours = {asset.uri for asset in outlets(Pipeline.from_json(checkpoint.definition))}
    reached = {asset.uri: extra for asset, extra in published(checkpoint)}
    kept = [outlet for outlet in declared if getattr(outlet, "uri", None) not in ours - reached.keys()]
    for outlet in kept:
        if isinstance(outlet, Asset) and outlet.uri in reached:
            event = context["outlet_events"][outlet]
            event.extra.update(reached[outlet.uri])
            if keyed and checkpoint.interval:
                event.add_partitions(partition_key(checkpoint.interval))
    return kept


def partition_key(interval: Interval) -> str:
    """Its start in UTC, in the form that Airflow's own partition mappers read."""
    return f"{interval.start:%Y-%m-%dT%H:%M:%S}"


def announce_recovered(context: Any, checkpoint: Checkpoint) -> None:
    """The same for what was published on behalf of a run that has ended."""
    for asset, extra in published(checkpoint):
        context["outlet_events"][RECOVERED].add(asset, extra)


def _extra(checkpoint: Checkpoint, sink: str) -> dict[str, Any]:
    window = checkpoint.interval
    bad = {} if checkpoint.bad_records is None else {"bad": checkpoint.bad_records}
    return {
        "pipeline": checkpoint.pipeline,
        "epoch": checkpoint.epoch,
        "rows": checkpoint.handles[sink].get("rows"),
        "offsets": {r.topic: {str(p): list(span) for p, span in r.partitions.items()} for r in checkpoint.ranges},
        "interval": [window.start.isoformat(), window.end.isoformat()] if window else None,
        **bad,
        **({"after": {name: list(epochs) for name, epochs in checkpoint.after.items()}} if checkpoint.after else {}),
    }
