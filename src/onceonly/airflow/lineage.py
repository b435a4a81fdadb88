"""Lineage for OpenLineage: which offsets a checkpoint has read, what its gate found, what is published where.

All is put together while the task's own process is running. The provider asks for it in a child process, in which
neither the state table nor a connection may be opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any

from onceonly import redaction
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.runtime import datasets
from onceonly.views import queries

if TYPE_CHECKING:
    from onceonly.runtime.live_services import LiveServices

PROVIDER = "airflow.providers.openlineage"
SEVERITY = {"critical": "error", "warning": "warn"}  # OpenLineage's words for what blocks and what does not


@dataclass(frozen=True)
class Lineage:
    """The lineage of the checkpoints that a task has worked on."""

    inputs: Sequence[datasets.InputDataset] = ()
    outputs: Sequence[datasets.OutputDataset] = ()
    checkpoints: Sequence[dict[str, Any]] = ()
    gate_checks: Sequence[tuple[datasets.Dataset, Sequence[Mapping[str, Any]]]] = ()  # each output with its checks


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
    inputs: list[datasets.InputDataset] = []
    outputs: list[datasets.OutputDataset] = []
    for checkpoint in checkpoints:
        if len(pipelines) == 1:
            inputs += datasets.list_inputs(services, checkpoint)
        outputs += datasets.list_outputs(services, checkpoint)
    return Lineage(inputs, outputs, [_checkpoint_facet(checkpoint) for checkpoint in checkpoints])


def collect_gate_lineage(services: LiveServices, *checkpoints: Checkpoint) -> Lineage:
    """Return what their gates found in the rows staged for each of their outputs; of aborted ones, what does not come.

    In the event these outputs are inputs: an output would say that something was written.
    """
    gate_checks: list[tuple[datasets.Dataset, Sequence[Mapping[str, Any]]]] = []
    for checkpoint in checkpoints:
        gate_checks += _read_checks(services, checkpoint)
    return Lineage(gate_checks=gate_checks, checkpoints=collect_abort_lineage(services, *checkpoints).checkpoints)


def _read_checks(
    services: LiveServices, checkpoint: Checkpoint
) -> Iterator[tuple[datasets.Dataset, Sequence[Mapping[str, Any]]]]:
    """Yield each output that the gate has examined, with its checks."""
    sinks = (checkpoint.verdict or {}).get("sinks", {})
    for output in datasets.list_intended_outputs(services, checkpoint):
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
    outputs = datasets.list_intended_outputs(services, checkpoint)
    return [{"namespace": output.namespace, "name": output.name} for output in outputs]


def _checkpoint_facet(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what the run's facet says of a checkpoint."""
    checkpoint_json = queries.to_json(checkpoint)
    keys = ("pipeline", "epoch", "state", "attempt", "decision", "interval", "gate")
    return {key: checkpoint_json[key] for key in keys}


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


def _input(read: datasets.InputDataset) -> Any:
    """Return OpenLineage's input for a range, with its offsets."""
    from openlineage.client.generated.base import InputDataset, InputDatasetFacet

    partitions = []
    for partition, (start, end) in sorted(read.range.partitions.items()):
        partitions.append({"partition": partition, "start": start, "end": end})
    properties = {"unit": read.range.unit, "id": read.range.topic_id, "partitions": partitions}
    offsets: Any = InputDatasetFacet().with_additional_properties(**properties)  # of a class that is made for them
    return InputDataset(read.namespace, read.name, inputFacets={"onceonly_offsets": offsets})


def _examined_input(output: datasets.Dataset, checks: Sequence[Mapping[str, Any]]) -> Any:
    """Return OpenLineage's input for an output whose staged rows a gate has examined, with the checks."""
    from openlineage.client.generated.base import InputDataset
    from openlineage.client.generated.data_quality_assertions_dataset import DataQualityAssertionsDatasetFacet

    facet = DataQualityAssertionsDatasetFacet(assertions=[_assertion(check) for check in checks])
    return InputDataset(output.namespace, output.name, inputFacets={"dataQualityAssertions": facet})


def _assertion(check: Mapping[str, Any]) -> Any:
    from openlineage.client.generated import data_quality_assertions_dataset as generated

    optional = {}
    if "severity" in signature(generated.Assertion).parameters:  # older clients have no severity
        optional["severity"] = SEVERITY.get(check["severity"], check["severity"])
    return generated.Assertion(assertion=check["what"], success=check["ok"], column=check.get("column"), **optional)


def _output(written: datasets.OutputDataset) -> Any:
    """Return OpenLineage's output for what is published, with its amounts, and its columns where they are known."""
    from openlineage.client.generated.base import OutputDataset
    from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet
    from openlineage.client.generated.schema_dataset import SchemaDatasetFacet, SchemaDatasetFacetFields

    statistics = OutputStatisticsOutputDatasetFacet(rowCount=written.rows, size=written.bytes, fileCount=written.files)
    fields = [SchemaDatasetFacetFields(name=name, type=kind) for name, kind in written.fields]
    return OutputDataset(
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
