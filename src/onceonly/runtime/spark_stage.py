"""The stage on Spark: read the pinned ranges of a checkpoint, transform them, hand the rows to the coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from datetime import datetime
from typing import Any

from onceonly.checkpoint.commands import how_to_run
from onceonly.checkpoint.definition import Definition
from onceonly.checkpoint.interfaces import CountedRecords, EncodedRecords, Source
from onceonly.checkpoint.model import Checkpoint, Handle
from onceonly.checkpoint.offsets import KAFKA, Ranges, TopicRange, has_data
from onceonly.checkpoint.sink import Changes, StateBackend
from onceonly.coordinator.coordinator import Coordinator
from onceonly.coordinator.stage import Produced, find_state_before
from onceonly.errors import NotCommitted, OnceonlyError
from onceonly.pipeline.dead_letters import can_lack_records
from onceonly.runtime import code_version, owners, spark_errors, stage_progress, transforms
from onceonly.runtime.bad_records import BadRecords
from onceonly.runtime.live_services import LiveServices
from onceonly.settings import Settings
from onceonly.spark import small_batch, stores
from onceonly.spark.progress import Say, report_progress
from onceonly.spark.row_files import switch_off_skipping
from onceonly.statetable.view import View
from onceonly.windows.state import mark_time


def stage(
    services: LiveServices,
    coordinator: Coordinator,
    name: str,
    epoch: int,
    owner: str | None,
    say: Say | None = None,
    since: int | None = None,
) -> Checkpoint:
    """Stage one checkpoint on Spark.

    Args:
        owner: who has to own the checkpoint; None: anyone.
        say: told now and then how far Spark is.
        since: the checkpoint's last row when this was asked for; a later row of another process ends this one.
    Raises:
        NotCommitted: also for errors of Spark that nobody classified: staging publishes nothing.
    """
    view = coordinator.state_table.view(name)
    checkpoint = view.require(epoch)
    state_before = find_state_before(view, checkpoint)
    producer = _OutputProducer(services, checkpoint, state_before, _find_time(view, checkpoint), say)
    try:
        code = code_version.describe_code(services.settings.project)
        return coordinator.stage(name, epoch, producer.produce, owner, since, producer.prepare, owners.keep_lease, code)
    except OnceonlyError as error:
        text_error = _find_text_error(error)
        if text_error:
            raise text_error from error
        raise
    except Exception as error:
        readable_error = spark_errors.keep_text(error)
        cause = _find_text_error(readable_error) or producer.diagnose(readable_error, checkpoint.ranges)
        raise _classify_error(cause, checkpoint, services.settings) from error
    finally:
        producer.end()


def max_records(checkpoint: Checkpoint) -> int | None:
    """Return how many records are read for it at most; None: unknown, or its state, of any size, is read as well."""
    of_any_size = any(range_.kind != KAFKA for range_ in checkpoint.ranges)  # a version of a table, a decision
    if of_any_size or checkpoint.definition.pipeline.state:
        return None
    return sum(range_.offset_count for range_ in checkpoint.ranges)


class _OutputProducer:
    """Makes a DataFrame per sink from the pinned ranges of one claimed checkpoint."""

    def __init__(
        self,
        services: LiveServices,
        checkpoint: Checkpoint,
        previous_state: Handle | None,
        time: datetime,
        say: Say | None,
    ) -> None:
        self._say, self._until_end = say, ExitStack()
        self._services, self._previous_state, self._time = services, previous_state, time
        self._definition = checkpoint.definition
        self._pipeline = pipeline = checkpoint.definition.pipeline
        # Before the checkpoint is claimed, so that a transform that does not load leaves no attempt.
        self._transform = transforms.load(pipeline.transform, services.settings)
        self._sources = services.sources(pipeline)
        self._pinned_sources: dict[str, Source] = {}
        self._bad = BadRecords(pipeline)
        self._spark: Any = None
        self._is_small_batch = False
        self._persisted_batches: list[Any] = []

    def prepare(self, checkpoint: Checkpoint) -> Mapping[str, Any]:
        """Open Spark for the claimed checkpoint, and return by source the schemas to pin.

        Empty: it has pinned schemas, or its sources use none.
        """
        _check_same_definition(self._definition, checkpoint)
        self._until_end.enter_context(
            stage_progress.keep_progress(self._services.settings.state, checkpoint, lambda: self._spark)
        )
        record_count = max_records(checkpoint)
        self._spark = self._services.spark(record_count)
        # A later attempt leaves small batches to Spark: whatever ended the first may have been their size.
        self._is_small_batch = checkpoint.attempt == 1 and small_batch.is_small(record_count)
        if self._say:
            self._until_end.enter_context(report_progress(self._spark, self._say))
        if self._is_small_batch:
            self._read_small_batch(checkpoint)
        if checkpoint.schemas:
            return {}
        return self._find_schemas(checkpoint)

    def produce(self, checkpoint: Checkpoint) -> Produced:
        """Read, transform and check the rows of the checkpoint, by its pinned schemas."""
        pinning_sources = self._list_pinning_sources()
        for name, schemas in checkpoint.schemas.items():
            self._pinned_sources[name] = pinning_sources[name].pinned_to(schemas)
        batches = {}
        for name, ranges in self._ranges_by_source(checkpoint.ranges).items():
            batches[name] = self._read_batch(name, ranges)
        self._bad.check(checkpoint)
        rows = self._transform_batches(checkpoint, batches)
        self._bad.check(checkpoint)  # again, with those that the transform has named
        return Produced(rows, self._bad.tally(), self._is_small_batch, self._count_read(checkpoint))

    def _read_small_batch(self, checkpoint: Checkpoint) -> None:
        """Let each source that can do so read its records in this process, before anything asks for them."""
        for name, ranges in self._ranges_by_source(checkpoint.ranges).items():
            self._sources[name].read_small_batch(ranges)

    def _count_read(self, checkpoint: Checkpoint) -> dict[str, dict[str, list[int]]]:
        """Return how many records were read, by topic and partition: where they were counted anyway, and nowhere else.

        Spark counts what it reads only where records may be bad. What it would observe beside a query is no evidence:
        a task that is repeated counts twice, and a transform may not look at all rows.
        """
        read: dict[str, dict[str, list[int]]] = {}
        for name, ranges in self._ranges_by_source(checkpoint.ranges).items():
            source = self._select_source(name)
            here = _count_read_here(source, ranges)
            if here is None and not self._bad.has_counted(name):
                continue
            for range_ in ranges:
                counts = read.setdefault(range_.topic, {})
                for partition in _list_read_partitions(range_):
                    counts[str(partition)] = self._bad.count_partition(range_.topic, partition)
                    if not self._bad.has_counted(name) and here is not None:
                        number = here.get((range_.topic, partition), 0)
                        counts[str(partition)] = [number, number, 0, 0]
        return {topic: counts for topic, counts in read.items() if counts}

    def _transform_batches(self, checkpoint: Checkpoint, batches: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the outputs by sink; of the sink that keeps state, its changes with the handle that they follow."""
        batch: Any = batches if len(batches) > 1 else next(iter(batches.values()))
        state = self._pipeline.state
        if state is None:
            outputs = self._make_outputs(checkpoint, self._transform(batch))
        else:
            state_sink = self._services.sink(self._pipeline, state.name)
            assert isinstance(state_sink, StateBackend)
            state_rows = mark_time(state_sink.read(self._spark, self._previous_state), self._time)
            outputs = self._make_outputs(checkpoint, self._transform(batch, state_rows))
            outputs = {**outputs, state.name: Changes(outputs[state.name], self._previous_state)}
        self._check_suites(outputs)
        return outputs

    def _list_pinning_sources(self) -> dict[str, EncodedRecords]:
        """Return by name the sources whose records name registered schemas."""
        pinning_sources: dict[str, EncodedRecords] = {}
        for source_config in self._pipeline.sources:
            source = self._sources[source_config.input_name]
            if isinstance(source, EncodedRecords):
                pinning_sources[source_config.input_name] = source
        return pinning_sources

    def _find_schemas(self, checkpoint: Checkpoint) -> Mapping[str, Any]:
        """Return by source the schemas that the ranges use now."""
        ranges = self._ranges_by_source(checkpoint.ranges)
        schemas_by_source = {}
        for name, source in self._list_pinning_sources().items():
            schemas = source.schemas(self._spark, ranges[name])
            if schemas:
                schemas_by_source[name] = schemas
        return schemas_by_source

    def _ranges_by_source(self, ranges: Ranges) -> dict[str, Ranges]:
        """Return by the name of each source the ranges that it reads."""
        by_source = {}
        for source in self._pipeline.sources:
            by_source[source.input_name] = tuple(range_ for range_ in ranges if source.reads(range_.topic))
        return by_source

    def _select_source(self, name: str) -> Source:
        """Return the source as it decodes in this checkpoint."""
        return self._pinned_sources.get(name) or self._sources[name]

    def _make_outputs(self, checkpoint: Checkpoint, result: Any) -> Mapping[str, Any]:
        """Return the rows by sink from the transform's result, dead letters among them.

        An empty batch yields empty outputs, whatever the transform makes of it: a gate looks, and changes no output.
        """
        from onceonly.spark import text

        switch_off_skipping(self._spark)
        outputs = dict(transforms.select_outputs(self._pipeline, result))
        if self._pipeline.dead_letters:
            sink = str(self._pipeline.dead_letters)
            ranges = self._ranges_by_source(checkpoint.ranges)
            outputs[sink] = self._bad.make_dead_letters(
                outputs.get(sink), lambda source: self._read_undecoded(source, ranges[source]), self._persist
            )
        if not has_data(checkpoint.ranges):
            return {name: rows.limit(0) for name, rows in outputs.items()}
        # Of few rows, asking the session what it has would take longer than any check.
        check = text.is_valid if self._is_small_batch else text.find_check(self._spark)
        return {name: text.check_text(rows, name, check) for name, rows in outputs.items()}

    def _check_suites(self, outputs: Mapping[str, Any]) -> None:
        """Refuse a gate whose suites name columns that the outputs lack, before any row is written."""
        if self._pipeline.gate:
            self._services.inspector(self._pipeline).check_outputs(outputs)

    def _read_batch(self, name: str, ranges: Ranges) -> Any:
        source = self._select_source(name)
        can_lack = can_lack_records(self._pipeline.sources, self._pipeline.dead_letters)
        if self._bad.sets_apart(name):
            rows_with_errors = _require_encoded_records(source).read_with_errors(self._spark, ranges)
            return self._bad.select_decoded(name, self._persist(rows_with_errors))
        batch = source.read(self._spark, ranges)
        has_several_sinks = len(self._pipeline.sinks) > 1
        if can_lack or (has_several_sinks and _count_read_here(source, ranges) is None):
            batch = self._persist(batch)  # each sink runs a job of its own: Spark reads the source once for all
        if can_lack:
            self._bad.count_records(name, batch, isinstance(source, EncodedRecords))
        return batch

    def _persist(self, batch: Any) -> Any:
        """Return the batch so that it is computed once, until `end`."""
        self._persisted_batches.append(batch.persist())
        return self._persisted_batches[-1]

    def _read_undecoded(self, name: str, ranges: Ranges) -> Any:
        """Return the records of a source as they are in the topic; None where its rows are no records."""
        source = self._select_source(name)
        if not isinstance(source, EncodedRecords):
            return None
        return source.read_undecoded(self._spark, ranges)

    def diagnose(self, error: Exception, ranges: Ranges) -> Exception:
        """Return the error in the terms of the topic that it comes from, where one is found; else as it is."""
        if not self._spark:  # nothing was read
            return error
        for name, source_ranges in self._ranges_by_source(ranges).items():
            diagnosis = self._select_source(name).diagnose(error, self._spark, source_ranges)
            if diagnosis is not error:
                return diagnosis
        return error

    def end(self) -> None:
        """Stop the report of progress, then free the batches."""
        self._until_end.close()
        with suppress(Exception):  # then Spark has ended, with all that it kept; what ended it is the error to tell
            for batch in self._persisted_batches:
                batch.unpersist()


def _list_read_partitions(range_: TopicRange) -> list[int]:
    """Return the partitions of a range in which there is something to read."""
    return [partition for partition, (start, end) in sorted(range_.partitions.items()) if start < end]


def _find_time(view: View, checkpoint: Checkpoint) -> datetime:
    """Return what the rows of a checkpoint are compared with: pinned, so that it is the same for each attempt.

    Of a repair it is that of the checkpoint that it repairs, whose rows it makes once more.
    """
    return checkpoint.interval.end if checkpoint.interval else view.require(checkpoint.origin).planned_at


def _count_read_here(source: Source, ranges: Ranges) -> Mapping[tuple[str, int], int] | None:
    """Return how many records of the ranges this process has read, as `CountedRecords` has it; None: it has not."""
    return source.count_read(ranges) if isinstance(source, CountedRecords) else None


def _require_encoded_records(source: Source) -> EncodedRecords:
    assert isinstance(source, EncodedRecords)  # what a definition can ask for, its source is able to do
    return source


def _check_same_definition(definition: Definition, claimed: Checkpoint) -> None:
    """Refuse a checkpoint with another definition than the one whose transform was loaded, which is before the claim.

    A transform that does not load leaves no attempt that way.
    """
    if claimed.definition != definition:
        raise NotCommitted(
            f"{claimed.pipeline} epoch {claimed.epoch} could not be staged.",
            "It was planned again meanwhile, with another definition.",
            f"Stage it again, by the new one: {how_to_run(claimed)}. Nothing was written.",
            code="definition-changed",
        )


def _find_text_error(error: Exception) -> OnceonlyError | None:
    """Return the error of rows whose text no sink may write, whichever sink has met it; None for any other."""
    from onceonly.spark import text

    return text.explain_text_error(error)


def _classify_error(error: Exception, checkpoint: Checkpoint, settings: Settings) -> OnceonlyError:
    """Return an error that says what a person can do; NotCommitted, as staging publishes nothing."""
    if isinstance(error, OnceonlyError):
        return error
    what = f"{checkpoint.pipeline} epoch {checkpoint.epoch} could not be staged."
    missing_jar = stores.explain_missing_jar(error, what)
    if missing_jar:
        return missing_jar
    code, todo = spark_errors.classify(str(error))
    return NotCommitted(
        what, spark_errors.describe_error(error, transforms.list_own_folders(settings)), todo, code=code
    )
