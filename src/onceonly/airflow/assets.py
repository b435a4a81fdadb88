"""The targets of a pipeline as Airflow assets: a DAG can be scheduled on a table, a topic or a folder.

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
    """Return the assets of one sink: none for application state, one for each topic, else what its config says."""
    return [Asset(name=uri, uri=uri) for uri in sink.asset_uris()]


def outlets(pipeline: Pipeline) -> list[Asset]:
    """Return everything that the pipeline may publish, each once."""
    assets_by_uri = {}
    for sink in pipeline.sinks:
        for asset in assets_of(sink):
            assets_by_uri[asset.uri] = asset
    return list(assets_by_uri.values())


def inlets(pipeline: Pipeline) -> list[Asset]:
    """Return the tables that a pipeline reads. A DAG that is scheduled on them follows the DAGs that write them."""
    return [Asset(name=uri, uri=uri) for uri in pipeline.tables.values()]


def list_published(checkpoint: Checkpoint) -> Iterator[tuple[Asset, dict[str, Any]]]:
    """Yield the assets that the checkpoint has reached, each with the extra of its event."""
    pipeline = checkpoint.definition.pipeline
    for name in checkpoint.published:
        extra = _event_extra(checkpoint, name)
        for asset in assets_of(pipeline.sink(name)):
            yield asset, extra


def announce(context: Any, checkpoint: Checkpoint, declared: Iterable[Any], keyed: bool = False) -> list[Any]:
    """Record the events of what is published, and return the outlets that remain: Airflow sends one for each outlet.

    Args:
        declared: the task's outlets; those that are not of this pipeline's making stay as they are.
        keyed: give the events of an interval its partition key.
    """
    possible_uris = {asset.uri for asset in outlets(checkpoint.definition.pipeline)}
    extras_by_uri = {asset.uri: extra for asset, extra in list_published(checkpoint)}
    unpublished_uris = possible_uris - extras_by_uri.keys()
    remaining = [outlet for outlet in declared if getattr(outlet, "uri", None) not in unpublished_uris]
    for outlet in remaining:
        if not isinstance(outlet, Asset) or outlet.uri not in extras_by_uri:
            continue
        event = context["outlet_events"][outlet]
        event.extra.update(extras_by_uri[outlet.uri])
        if keyed and checkpoint.interval:
            event.add_partitions(partition_key(checkpoint.interval))
    return remaining


def partition_key(interval: Interval) -> str:
    """Return the start of an interval in UTC, in the form that Airflow's own partition mappers read."""
    return f"{interval.start:%Y-%m-%dT%H:%M:%S}"


def announce_recovered(context: Any, checkpoint: Checkpoint) -> None:
    """Record the events of what was published on behalf of a run that has ended."""
    for asset, extra in list_published(checkpoint):
        context["outlet_events"][RECOVERED].add(asset, extra)


def _event_extra(checkpoint: Checkpoint, sink: str) -> dict[str, Any]:
    """Return what the event of one of a sink's assets says; it is kept in Airflow's database, as JSON."""
    offsets = {}
    for range_ in checkpoint.ranges:
        offsets[range_.topic] = {str(partition): list(span) for partition, span in range_.partitions.items()}
    interval = checkpoint.interval
    extra: dict[str, Any] = {
        "interval": [interval.start.isoformat(), interval.end.isoformat()] if interval else None,
        "pipeline": checkpoint.pipeline,
        "epoch": checkpoint.epoch,
        "rows": checkpoint.handles[sink].get("rows"),
        "offsets": offsets,
    }
    if checkpoint.bad_records is not None:
        extra["bad"] = checkpoint.bad_records
    if checkpoint.repairs is not None:
        extra["repairs"] = checkpoint.repairs
    if checkpoint.after:
        extra["after"] = {name: list(epochs) for name, epochs in checkpoint.after.items()}
    return extra
