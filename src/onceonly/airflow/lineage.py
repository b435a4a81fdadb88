"""Lineage for OpenLineage: which offsets a checkpoint has read, what its gate found, what is published where.

Topics, tables and folders have the names by which catalogs know them, and by which Spark's own events name them.
Source: OpenLineage's spec, "Naming Conventions".

All is put together while the task's own process is running. The provider asks for it in a child process, in which
neither the state table nor a connection may be opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from onceonly import redaction
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import TopicRange
from onceonly.pipeline.definition import find_source
from onceonly.pipeline.sink_config import SinkConfig
from onceonly.pipeline.sources import Stored
from onceonly.views import queries

if TYPE_CHECKING:
    from onceonly.runtime.live_services import LiveServices

PROVIDER = "airflow.providers.openlineage"
FILES, BELOW_HOME, BUCKETS = "file", "onceonly://", {"s3": "s3", "s3a": "s3", "gs": "gs"}
Fields = tuple[tuple[str, str], ...]  # (name, type), as far as they are known
SEVERITY = {"critical": "error", "warning": "warn"}  # OpenLineage's words for what blocks and what does not


@dataclass(frozen=True)
class Dataset:
    """A topic, table or folder."""

    namespace: str
    name: str


@dataclass(frozen=True)
class InputDataset(Dataset):
    """A dataset that was read, and the range that was read of it."""

    range: TopicRange


@dataclass(frozen=True)
class OutputDataset(Dataset):
    """A dataset with what was published there; None where the sink does not count it for this part of its output."""

    sink: str
    rows: int | None = None
    bytes: int | None = None
    files: int | None = None
    fields: Fields = ()


@dataclass(frozen=True)
class Lineage:
    """The lineage of the checkpoints that a task has worked on."""

    inputs: Sequence[InputDataset] = ()
    outputs: Sequence[OutputDataset] = ()
    checkpoints: Sequence[dict[str, Any]] = ()
    gate_checks: Sequence[tuple[Dataset, Sequence[Mapping[str, Any]]]] = ()  # each output with its checks


def is_enabled() -> bool:
    """Whether the provider is installed and has somewhere to send events to."""
    try:
        if find_spec(PROVIDER) is None:
            return False
    except ModuleNotFoundError:
        return False
    from airflow.providers.openlineage import conf

    return not conf.is_disabled()


def collect_lineage(services: LiveServices, *checkpoints: Checkpoint) -> Lineage:
    """Return what checkpoints have read, and what they have published.

    Checkpoints of several pipelines: their inputs are left out, else each would seem to go into every output.
    """
    pipelines = {checkpoint.pipeline for checkpoint in checkpoints}
    inputs: list[InputDataset] = []
    outputs: list[OutputDataset] = []
    for checkpoint in checkpoints:
        if len(pipelines) == 1:
            inputs += list_inputs(services, checkpoint)
        outputs += list_outputs(services, checkpoint)
    return Lineage(inputs, outputs, [_checkpoint_facet(checkpoint) for checkpoint in checkpoints])


def collect_gate_lineage(services: LiveServices, *checkpoints: Checkpoint) -> Lineage:
    """Return what their gates found in the rows staged for each of their outputs; of aborted ones, what does not come.

    In the event these outputs are inputs: an output would say that something was written.
    """
    gate_checks: list[tuple[Dataset, Sequence[Mapping[str, Any]]]] = []
    for checkpoint in checkpoints:
        gate_checks += _read_checks(services, checkpoint)
    return Lineage(gate_checks=gate_checks, checkpoints=collect_abort_lineage(services, *checkpoints).checkpoints)


def _read_checks(
    services: LiveServices, checkpoint: Checkpoint
) -> Iterator[tuple[Dataset, Sequence[Mapping[str, Any]]]]:
    """Yield each output that the gate has examined, with its checks."""
    sinks = (checkpoint.verdict or {}).get("sinks", {})
    for output in list_intended_outputs(services, checkpoint):
        if output.sink in sinks:
            yield output, redaction.hide_credentials(sinks[output.sink]["checks"])


def collect_abort_lineage(services: LiveServices, *checkpoints: Checkpoint) -> Lineage:
    """Return what aborted checkpoints do not publish: no output, which would say that something was written."""
    facets = []
    for checkpoint in checkpoints:
        facet = _checkpoint_facet(checkpoint)
        if checkpoint.state is State.ABORTED:
            facet["unpublished"] = _unpublished_outputs(services, checkpoint)
        facets.append(facet)
    return Lineage(checkpoints=facets)


def _unpublished_outputs(services: LiveServices, checkpoint: Checkpoint) -> list[dict[str, str]]:
    outputs = list_intended_outputs(services, checkpoint)
    return [{"namespace": output.namespace, "name": output.name} for output in outputs]


def _checkpoint_facet(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what the run's facet says of a checkpoint."""
    checkpoint_json = queries.to_json(checkpoint)
    keys = ["pipeline", "epoch", "state", "attempt", "decision", "interval", "gate"]
    if checkpoint.is_repair:
        keys += ["only", "repairs", "requested_by"]
    return {key: checkpoint_json[key] for key in keys}


def list_inputs(services: LiveServices, checkpoint: Checkpoint) -> Iterator[InputDataset]:
    """Yield what the checkpoint reads: topics, tables and folders, with the range of each."""
    pipeline = checkpoint.definition.pipeline
    for range_ in checkpoint.ranges:
        source = find_source(pipeline, range_.topic)
        if isinstance(source, Stored):
            yield InputDataset(*_split_uri(services.settings.locate(source.path)), range_)
        elif source:
            yield InputDataset(_brokers_namespace(services, source), range_.topic, range_)


def list_outputs(services: LiveServices, checkpoint: Checkpoint) -> Iterator[OutputDataset]:
    """Yield what it has published, sink by sink; no application state, and nothing of a sink that was given up."""
    pipeline = checkpoint.definition.pipeline
    for name in checkpoint.published:
        config, handle = pipeline.sink(name), checkpoint.handles[name]
        if "topics" in handle:
            yield from _written_topics(services, config, handle)
        else:
            yield from _written_places(services, config, handle)


def list_intended_outputs(services: LiveServices, checkpoint: Checkpoint) -> Iterator[OutputDataset]:
    """Yield what it would publish or would have published, by the same names.

    Nothing is read, so nothing is counted.
    """
    for config in map(checkpoint.definition.pipeline.sink, checkpoint.sinks):
        handle = checkpoint.handles.get(config.name, {})
        topics = handle.get("topics") or config.written_topics()
        if topics:
            for topic in topics:
                yield OutputDataset(_brokers_namespace(services, config), topic, config.name)
        else:
            for uri in _uris(config, handle):
                yield OutputDataset(*_name_place(services, uri), config.name)


def _written_topics(services: LiveServices, config: SinkConfig, handle: Mapping[str, Any]) -> Iterator[OutputDataset]:
    topics = list(handle["topics"])
    counts = _counts(handle, len(topics))
    fields = _avro_fields(services, config)
    for topic in topics:
        yield OutputDataset(_brokers_namespace(services, config), topic, config.name, *counts, fields)


def _written_places(services: LiveServices, config: SinkConfig, handle: Mapping[str, Any]) -> Iterator[OutputDataset]:
    uris = _uris(config, handle)
    counts = _counts(handle, len(uris))
    for uri in uris:
        yield OutputDataset(*_name_place(services, uri), config.name, *counts, _delta_fields(handle))


def _uris(config: SinkConfig, handle: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where a sink's tables and folders are: as staged, if it was; none of a sink without assets."""
    uris = config.asset_uris()
    staged_uri = handle.get("uri") or handle.get("target")
    if uris and staged_uri:
        return (str(staged_uri),)
    return uris


def _name_place(services: LiveServices, uri: str) -> tuple[str, str]:
    return _split_uri(services.settings.locate(uri.removeprefix(BELOW_HOME)))


def _counts(handle: Mapping[str, Any], place_count: int) -> tuple[int | None, int | None, int | None]:
    """Return rows, bytes and files; of several places it is not known how many went to which."""
    if place_count != 1:
        return None, None, None
    files = handle.get("files")
    if files is not None and not isinstance(files, int):
        files = len(files)
    return handle.get("rows"), handle.get("bytes"), files


def _brokers_namespace(services: LiveServices, config: Any) -> str:
    """Return kafka://host:port: the first address stands for the cluster."""
    return f"kafka://{services.kafka(config.connection, config.bootstrap).bootstrap.split(',')[0].strip()}"


def _split_uri(uri: str) -> tuple[str, str]:
    """Return the namespace and the name of the dataset at a path or URI."""
    parts = urlsplit(uri)
    if parts.scheme in ("", FILES):
        return FILES, parts.path.rstrip("/")
    user, _, host = parts.netloc.rpartition("@")
    authority = host if ":" in user else parts.netloc  # without a password; a container of Azure stays
    if parts.scheme in BUCKETS:
        return f"{BUCKETS[parts.scheme]}://{authority}", parts.path.strip("/")
    return f"{parts.scheme}://{authority}", parts.path.rstrip("/")


def _delta_fields(handle: Mapping[str, Any]) -> Fields:
    """Return the columns of a Delta table, as it is now; none where they cannot be read."""
    from deltalake import DeltaTable

    if handle.get("kind") != "delta":
        return ()
    with suppress(Exception):
        fields = json.loads(DeltaTable(str(handle["uri"])).schema().to_json())["fields"]
        return tuple((field["name"], _type_name(field["type"])) for field in fields)
    return ()


def _avro_fields(services: LiveServices, config: SinkConfig) -> Fields:
    """Return the fields of a sink's Avro schema file; none where there is none, or it cannot be read."""
    file = str(getattr(config, "schema", None) or "")
    if not file.endswith(".avsc"):
        return ()
    with suppress(OSError, ValueError, KeyError, TypeError):
        schema = json.loads((services.settings.project / file).read_text())
        return tuple((str(field["name"]), _type_name(field["type"])) for field in schema["fields"])
    return ()


def _type_name(type_: Any) -> str:
    """Return a type's name, or the JSON of one that has parts."""
    return type_ if isinstance(type_, str) else json.dumps(type_)


def make_facets(lineage: Lineage) -> Any:
    """Return the provider's `OperatorLineage`."""
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.generated.base import RunFacet

    inputs = [_input(read) for read in lineage.inputs]
    inputs += [_examined_input(output, checks) for output, checks in lineage.gate_checks]
    run_facets = {}
    if lineage.checkpoints:
        facet = RunFacet().with_additional_properties(checkpoints=list(lineage.checkpoints))
        run_facets["onceonly_checkpoints"] = facet
    return OperatorLineage(
        inputs=inputs, outputs=[_output(written) for written in lineage.outputs], run_facets=run_facets
    )


def _input(read: InputDataset) -> Any:
    """Return OpenLineage's input for a range, with its offsets."""
    from openlineage.client.generated import base

    partitions = []
    for partition, (start, end) in sorted(read.range.partitions.items()):
        partitions.append({"partition": partition, "start": start, "end": end})
    properties = {"unit": read.range.unit, "id": read.range.topic_id, "partitions": partitions}
    offsets: Any = base.InputDatasetFacet().with_additional_properties(**properties)  # of a class that is made for them
    return base.InputDataset(read.namespace, read.name, inputFacets={"onceonly_offsets": offsets})


def _examined_input(output: Dataset, checks: Sequence[Mapping[str, Any]]) -> Any:
    """Return OpenLineage's input for an output whose staged rows a gate has examined, with the checks."""
    from openlineage.client.generated import base
    from openlineage.client.generated.data_quality_assertions_dataset import DataQualityAssertionsDatasetFacet

    facet = DataQualityAssertionsDatasetFacet(assertions=[_assertion(check) for check in checks])
    return base.InputDataset(output.namespace, output.name, inputFacets={"dataQualityAssertions": facet})


def _assertion(check: Mapping[str, Any]) -> Any:
    from openlineage.client.generated import data_quality_assertions_dataset as generated

    optional = {}
    if "severity" in signature(generated.Assertion).parameters:  # older clients have no severity
        optional["severity"] = SEVERITY.get(check["severity"], check["severity"])
    return generated.Assertion(assertion=check["what"], success=check["ok"], column=check.get("column"), **optional)


def _output(written: OutputDataset) -> Any:
    """Return OpenLineage's output for what is published, with its amounts, and its columns where they are known."""
    from openlineage.client.generated import base
    from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet
    from openlineage.client.generated.schema_dataset import SchemaDatasetFacet, SchemaDatasetFacetFields

    statistics = OutputStatisticsOutputDatasetFacet(rowCount=written.rows, size=written.bytes, fileCount=written.files)
    fields = [SchemaDatasetFacetFields(name=name, type=kind) for name, kind in written.fields]
    return base.OutputDataset(
        written.namespace,
        written.name,
        facets={"schema": SchemaDatasetFacet(fields=fields)} if fields else {},
        outputFacets={"outputStatistics": statistics},
    )


def add_parent_run(conf: Mapping[str, str], context: Any) -> dict[str, str]:
    """Return Spark's settings, and that this task's run is the parent of what Spark itself tells.

    Where Airflow's own `[openlineage] spark_inject_parent_job_info` asks for it.
    """
    if is_enabled():
        from airflow.providers.openlineage import conf as settings
        from airflow.providers.openlineage.utils.spark import inject_parent_job_information_into_spark_properties

        if settings.spark_inject_parent_job_info():
            return {**inject_parent_job_information_into_spark_properties(dict(conf), context)}
    return dict(conf)
