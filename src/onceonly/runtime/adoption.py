"""What another job has left, on live services: its checkpoint folder or consumer group, and its target's log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onceonly.checkpoint.earlier_job import ConsumerGroup, StreamingProgress, TableEvidence
from onceonly.coordinator.adopt import Takeover, plan_takeover
from onceonly.delta import log_summary
from onceonly.errors import Busy, InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.runtime.live_services import LiveServices
from onceonly.sources.streaming_progress import read_progress
from onceonly.storage.file_systems import open_file_system


@dataclass(frozen=True)
class EarlierJob:
    """The job to take over from: one of both.

    Args:
        folder: the checkpoint folder of a Structured Streaming query: an absolute path or URI.
        tables: to which that query writes, as a person has said: absolute paths or URIs.
        group: the name of a consumer group.
    """

    folder: str | None = None
    tables: Sequence[str] = ()
    group: str | None = None


def look_at_job(services: LiveServices, pipeline: Pipeline, job: EarlierJob) -> Takeover:
    """Return where the pipeline begins if it takes over from that job. Nothing is written.

    Raises:
        InvalidPipeline: it cannot, or what the job has published is not known.
        NotCommitted, OutcomeUnknown: folder, table or brokers cannot be read.
        Busy: the query is at work.
    """
    sources = services.sources(pipeline)
    if job.folder is None:
        return plan_takeover(pipeline, sources, ConsumerGroup(job.group or ""))
    progress = _read_folder(services, job.folder)
    tables = list(_read_tables(services, pipeline, job, progress.query_id))
    takeover = plan_takeover(pipeline, sources, progress, tables)
    if _read_folder(services, job.folder) != progress:  # asked last: what has moved meanwhile is at work
        raise Busy(
            f"{pipeline.name}: the query with the checkpoint folder {job.folder} is at work.",
            "It has gone on while it was looked at, and would read and publish on.",
            "Stop it, see that its driver has ended, and repeat this command. Nothing was written.",
            code="streaming-query-active",
        )
    return takeover


def _read_folder(services: LiveServices, folder: str) -> StreamingProgress:
    opened = open_file_system(folder, services.settings.webhdfs)
    if opened is None:
        raise InvalidPipeline(
            f"the checkpoint folder {folder} cannot be read from here.",
            "It is on storage that Onceonly has no client for.",
            "Copy the folder to a disk, HDFS or an object store, and pass the copy. Nothing was written.",
            code="storage-unsupported",
        )
    files, path = opened
    return read_progress(files, path)


def _read_tables(services: LiveServices, pipeline: Pipeline, job: EarlierJob, query_id: str) -> Iterable[TableEvidence]:
    """Yield what the logs of Delta tables show of the query: of those that were named, else of the pipeline's own.

    Spark's own sink commits a batch with a transaction identifier: the id of the query, and the number of the batch.
    Source: Delta protocol, "Transaction Identifiers"; Delta 4.4, `DeltaSink.addBatch`.
    """
    own_paths = [services.settings.locate(sink.path) for sink in pipeline.sinks if isinstance(sink, DeltaSink)]
    for uri in job.tables or own_paths:
        summary = log_summary.read(uri)
        if summary is not None:
            yield TableEvidence(uri, summary.txns.get(query_id), is_named=bool(job.tables))
        elif job.tables:
            raise InvalidPipeline(
                f"there is no Delta table at {uri}.",
                "--table names it, and its log would show what the query has published.",
                "Correct the path: that of the table to which the query writes. Nothing was written.",
                code="not-a-delta-table",
            )
