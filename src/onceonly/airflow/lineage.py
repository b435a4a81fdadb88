"""What operators tell OpenLineage: which offsets a checkpoint has read, what its gate found, what is published where.

All is put together while the task's own process is running. The provider asks for it in a child process, in which
neither the state table nor a connection may be opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.runtime import datasets
from onceonly.views import queries

if TYPE_CHECKING:
    from onceonly.runtime.factory import LiveParts

PROVIDER = "airflow.providers.openlineage"
SEVERITY = {"critical": "error", "warning": "warn"}  # OpenLineage's words for what blocks and what does not


@dataclass(frozen=True)
class Lineage:
    """Of the checkpoints that a task has worked on."""

    inputs: Sequence[datasets.Read] = ()
    outputs: Sequence[datasets.Written] = ()
    checkpoints: Sequence[dict[str, Any]] = ()
    judged: Sequence[tuple[datasets.Dataset, Sequence[Mapping[str, Any]]]] = ()  # with the gate's checks of it


def on() -> bool:
    """Whether the provider is installed and has somewhere to send events to."""
    try:
        if find_spec(PROVIDER) is None:
            return False
    except ModuleNotFoundError:
        return False
    from airflow.providers.openlineage import conf

    return not conf.is_disabled()


def of(parts: LiveParts, *checkpoints: Checkpoint) -> Lineage:
    """What they have read and, once it is published, written.

    Checkpoints of several pipelines: their inputs are left out, else each would seem to go into every output.
    """
    one = len({checkpoint.pipeline for checkpoint in checkpoints}) == 1
    return Lineage(
        [read for checkpoint in checkpoints for read in datasets.read(parts, checkpoint)] if one else [],
        [written for checkpoint in checkpoints for written in datasets.written(parts, checkpoint)],
        [_named(checkpoint) for checkpoint in checkpoints],
    )


def of_gate(parts: LiveParts, *checkpoints: Checkpoint) -> Lineage:
    """What their gates found in the rows staged for each of their outputs; of aborted ones, what does not come."""
    judged = [each for checkpoint in checkpoints for each in _checks(parts, checkpoint)]
    return Lineage(judged=judged, checkpoints=of_abort(parts, *checkpoints).checkpoints)


def _checks(parts: LiveParts, checkpoint: Checkpoint) -> Iterator[tuple[datasets.Dataset, Sequence[Mapping[str, Any]]]]:
    sinks = (checkpoint.verdict or {}).get("sinks", {})
    aims = (aim for aim in datasets.aimed_at(parts, checkpoint) if aim.sink in sinks)
    yield from ((aim, queries.without_secrets(sinks[aim.sink]["checks"])) for aim in aims)


def of_abort(parts: LiveParts, *checkpoints: Checkpoint) -> Lineage:
    """What the aborted ones of them do not bring. An output would say that something was written."""
    return Lineage(checkpoints=[_named(checkpoint) | _unpublished(parts, checkpoint) for checkpoint in checkpoints])


def _unpublished(parts: LiveParts, checkpoint: Checkpoint) -> dict[str, Any]:
    if checkpoint.state is not State.ABORTED:
        return {}
    missed = [{"namespace": aim.namespace, "name": aim.name} for aim in datasets.aimed_at(parts, checkpoint)]
    return {"unpublished": missed}


def _named(checkpoint: Checkpoint) -> dict[str, Any]:
    told = queries.to_json(checkpoint)
    return {name: told[name] for name in ("pipeline", "epoch", "state", "attempt", "decision", "interval", "gate")}


def facets(lineage: Lineage) -> Any:
    """The provider's `OperatorLineage`."""
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.generated.base import RunFacet

    made = RunFacet().with_additional_properties(checkpoints=list(lineage.checkpoints))
    return OperatorLineage(
        inputs=[*map(_input, lineage.inputs), *(_judged(*each) for each in lineage.judged)],
        outputs=[_output(each) for each in lineage.outputs],
        run_facets={"onceonly_checkpoints": made} if lineage.checkpoints else {},
    )


def _input(read: datasets.Read) -> Any:
    from openlineage.client.generated.base import InputDataset, InputDatasetFacet

    spans = [{"partition": p, "start": start, "end": end} for p, (start, end) in sorted(read.range.partitions.items())]
    told = {"unit": read.range.unit, "id": read.range.topic_id, "partitions": spans}
    offsets: Any = InputDatasetFacet().with_additional_properties(**told)  # of a class that is made for them
    return InputDataset(read.namespace, read.name, inputFacets={"onceonly_offsets": offsets})


def _judged(staged: datasets.Dataset, checks: Sequence[Mapping[str, Any]]) -> Any:
    from openlineage.client.generated.base import InputDataset
    from openlineage.client.generated.data_quality_assertions_dataset import DataQualityAssertionsDatasetFacet

    facet = DataQualityAssertionsDatasetFacet(assertions=[_assertion(each) for each in checks])
    return InputDataset(staged.namespace, staged.name, inputFacets={"dataQualityAssertions": facet})


def _assertion(check: Mapping[str, Any]) -> Any:
    from openlineage.client.generated import data_quality_assertions_dataset as generated

    known = signature(generated.Assertion).parameters  # older clients have no severity
    severity = {"severity": SEVERITY.get(check["severity"], check["severity"])} if "severity" in known else {}
    return generated.Assertion(assertion=check["what"], success=check["ok"], column=check.get("column"), **severity)


def _output(written: datasets.Written) -> Any:
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


def with_parent(conf: Mapping[str, str], context: Any) -> dict[str, str]:
    """Spark's settings, and that this task's run is the parent of what Spark itself tells.

    Where Airflow's own `[openlineage] spark_inject_parent_job_info` asks for it.
    """
    if on():
        from airflow.providers.openlineage import conf as settings
        from airflow.providers.openlineage.utils.spark import inject_parent_job_information_into_spark_properties

        if settings.spark_inject_parent_job_info():
            return {**inject_parent_job_information_into_spark_properties(dict(conf), context)}
    return dict(conf)
