"""Errors whose code no other test names: each is raised where that takes no service, and its message is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from codes import raises

from onceonly.checkpoint.model import State
from onceonly.checkpoint.offsets import Interval
from onceonly.checkpoint.sink import Sink, require_inspectable
from onceonly.cli import describe
from onceonly.coordinator import messages, plan, ranges, resolve, upstream, upstream_rules
from onceonly.coordinator import rehearsal as rehearsal_of_checkpoint
from onceonly.coordinator.reprocess import Reprocess
from onceonly.errors import (
    ActionNeeded,
    Busy,
    Fenced,
    InDoubt,
    InvalidPipeline,
    NotCommitted,
    OnceonlyError,
    OutcomeUnknown,
    SourceLost,
    StageAgain,
)
from onceonly.kafka.admin import BrokerClient
from onceonly.pipeline import registry
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink, Merge, StateSink
from onceonly.pipeline.sources import DeltaSource, KafkaSource
from onceonly.runtime import driver, transforms
from onceonly.runtime.job_report import Report
from onceonly.settings import Settings
from onceonly.sinks.context import open_sink
from onceonly.sinks.delta import changes, rehearsal, target_table
from onceonly.sinks.files import stage as files_stage
from onceonly.sinks.kafka import check, commit, open_transactions, producer
from onceonly.sinks.kafka.handle import Part, Tx
from onceonly.sinks.state.sink import StateWriter
from onceonly.sources import delta_rules
from onceonly.spark import catalog, jvm, stores
from onceonly.storage.interface import UnsuitableTarget
from onceonly.storage.object_files import ObjectFiles

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
MERGING = DeltaSink("lake", "/lake", merge=Merge(["id"], ["at"]))
NAMED = DeltaSink("lake", table="shop.orders")
TOPIC = KafkaSink(name="copy", topic="copy")
CHECKPOINT: Any = SimpleNamespace(
    pipeline="flights", epoch=7, state=SimpleNamespace(value="committing"), waiting=("copy",), published={}
)


@contextmanager
def refusal(error: type[OnceonlyError], code: str) -> Iterator[None]:
    """Expect an error with this code, whose message begins with what happened and the code."""
    with raises(error, code) as raised:
        yield
    first, *others = str(raised.value).splitlines()
    assert first == f"{raised.value.what} [{code}]"
    assert others == [part for text in (raised.value.why, raised.value.todo) for part in text.splitlines()]


def fail(error: Exception) -> Callable[..., NoReturn]:
    """Return a function that raises the error whatever it is called with."""

    def failing(*_: object, **__: object) -> NoReturn:
        raise error

    return failing


def pipeline(name: str = "flights", **options: Any) -> Pipeline:
    return Pipeline(name=name, **{"source": KafkaSource("flights"), "transform": "a:b", "sinks": [NAMED], **options})


# ---- a pipeline and its sinks


def test_no_broker_is_configured(tmp_path: Path) -> None:
    with refusal(InvalidPipeline, "broker-not-configured"):
        Settings.from_env({"ONCEONLY_HOME": str(tmp_path)}).brokers(None)


def test_a_sink_is_no_config() -> None:
    with refusal(InvalidPipeline, "sink-invalid"):
        registry.check_sink("lake")


def test_a_kind_is_that_of_another_class() -> None:
    class OtherSink(FileSink):
        pass

    with refusal(InvalidPipeline, "sink-kind-of-another"):
        registry.check_sink(OtherSink("files", "/files"))


def test_a_writer_cannot_be_imported() -> None:
    config: Any = SimpleNamespace(name="lake", kind="other", writer="no_such_module:Writer")
    with refusal(InvalidPipeline, "writer-not-importable"):
        open_sink(config, cast(Any, None))


def test_a_writer_is_no_sink() -> None:
    config: Any = SimpleNamespace(name="lake", kind="other", writer="operator:is_")
    with refusal(InvalidPipeline, "writer-unsuitable"):
        open_sink(config, cast(Any, None))


class Unfinished(Sink):
    """A writer whose author has forgotten most of it."""

    def check(self) -> list[str]:
        return []


def test_a_writer_lacks_methods() -> None:
    config: Any = SimpleNamespace(name="lake", kind="other", writer=f"{__name__}:Unfinished")
    with raises(InvalidPipeline, "writer-unsuitable", match=r"commit\(\)"):
        open_sink(config, cast(Any, None))


PROMISES: list[dict[str, Any]] = [{"inspectable": True}, {"keeps_state": True}, {"slots": lambda: 3}]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: next(iter(promise)))
def test_a_writer_lacks_a_capability(promise: dict[str, Any]) -> None:
    kept = {"inspectable": False, "keeps_state": False, "slots": lambda: None}
    config: Any = SimpleNamespace(name="lake", kind="other", writer=f"{__name__}:make_plain_sink", **kept | promise)
    with refusal(InvalidPipeline, "writer-unsuitable"):
        open_sink(config, cast(Any, None))


def make_plain_sink(config: Any, context: Any) -> Sink:
    plain: Any = type("Plain", (Unfinished,), dict.fromkeys(Unfinished.__abstractmethods__))
    sink: Sink = plain()
    return sink


def test_a_gate_cannot_read_a_sink() -> None:
    with refusal(InvalidPipeline, "sink-not-inspectable"):
        require_inspectable(cast(Any, SimpleNamespace(name="copy")))


def test_a_transform_is_no_function(tmp_path: Path) -> None:
    (tmp_path / "constants_only.py").write_text("NUMBER = 1\n")
    settings = Settings.from_env({"ONCEONLY_HOME": str(tmp_path), "ONCEONLY_PROJECT": str(tmp_path)})
    with refusal(InvalidPipeline, "transform-not-function"):
        transforms.load("constants_only:NUMBER", settings)


# ---- intervals and other pipelines


def test_an_interval_is_empty() -> None:
    with refusal(InvalidPipeline, "interval-empty"):
        ranges._check_mode(pipeline(mode="interval"), Interval(NOON, NOON), NOON)


def test_an_interval_of_a_state_is_missing() -> None:
    state = StateSink("open", schema="page STRING, n INT", key=["page"])
    latest: Any = SimpleNamespace(
        interval=Interval(NOON - 2 * HOUR, NOON - HOUR), state=State.COMMITTED, sinks=("open",), epoch=7
    )
    with refusal(InvalidPipeline, "interval-missing"):
        ranges._check_follows(pipeline(mode="interval", sinks=[NAMED, state]), latest, Interval(NOON, NOON + HOUR))


def test_late_records_may_still_come() -> None:
    source = KafkaSource("flights", grace=60.0)
    with refusal(Busy, "grace-not-over"):
        ranges._check_grace(pipeline(mode="interval", source=source), Interval(NOON - HOUR, NOON), NOON)


def test_checkpoints_of_a_chain_are_not_replaced() -> None:
    with refusal(InvalidPipeline, "not-reprocessable"):
        plan._check_kind(pipeline(), ("lake",), Reprocess("ann"))


def test_a_pipeline_reads_nothing_of_the_one_before() -> None:
    with refusal(InvalidPipeline, "upstream-unrelated"):
        raise upstream_rules.unrelated_error(pipeline("copy"), "flights", [DeltaSink("lake", "/lake")])


def test_two_pipelines_before_write_one_table() -> None:
    before: Any = [SimpleNamespace(name=name, sink_by_topic={"lake": "lake"}) for name in ("one", "two")]
    with refusal(InvalidPipeline, "upstreams-share-table"):
        upstream_rules.refuse_shared(pipeline(), before)


def test_a_sink_before_has_no_versions() -> None:
    services: Any = SimpleNamespace(sink=lambda pipeline, sink: object())
    checkpoint: Any = SimpleNamespace(definition=SimpleNamespace(pipeline=pipeline()))
    writer: Any = SimpleNamespace(_parts=services, _reader=pipeline("copy"), name="flights")
    with refusal(InvalidPipeline, "upstream-without-versions"):
        upstream._Upstream._locate_checkpoint(writer, checkpoint, "lake")


# ---- settling


def test_nothing_is_committed_that_could_be_looked_up() -> None:
    view: Any = SimpleNamespace(head=SimpleNamespace(epoch=0))
    state: Any = SimpleNamespace(view=lambda pipeline: view)
    with refusal(InvalidPipeline, "nothing-committed"):
        describe._require_last_committed(state, "flights")


def test_a_refusal_without_a_code_needs_a_person() -> None:
    refused: Any = SimpleNamespace(sink="lake", error=ValueError("not so"), code="")
    with refusal(ActionNeeded, "action-needed"):
        raise rehearsal_of_checkpoint._action_needed_error(CHECKPOINT, refused)


def test_a_decision_is_not_published_yet() -> None:
    with refusal(OutcomeUnknown, "publication-unfinished"):
        raise messages.uncommitted_error(CHECKPOINT)


def test_a_target_shows_how_it_ended() -> None:
    with refusal(InvalidPipeline, "evidence-exists"):
        raise resolve._evidence_error(CHECKPOINT, "copy")


def test_the_marker_of_a_transaction_is_gone() -> None:
    with refusal(InDoubt, "evidence-lost"):
        raise commit._in_doubt_error("copy", [Part("0.parquet", 3, Tx("id-1", 7, 0, {}))])


# ---- Delta


def test_changes_lack_a_column() -> None:
    schema = {"fields": [{"name": "id", "type": "double", "nullable": True, "metadata": {}}]}
    rows: Any = SimpleNamespace(schema=SimpleNamespace(json=lambda: json.dumps(schema)))
    with refusal(InvalidPipeline, "columns-unsuitable"):
        changes.check_columns(MERGING, rows)


def test_a_change_has_no_order() -> None:
    with refusal(InvalidPipeline, "change-invalid"):
        raise changes._explain(MERGING, Exception(f"Job aborted: {changes.BAD_CHANGE}'at' is null, {{}}"))


def test_a_value_cannot_be_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    from onceonly.sinks.delta import merge

    monkeypatch.setattr(merge, "compute", fail(OverflowError("date value out of range")))
    with refusal(ActionNeeded, "merge-impossible"):
        rehearsal._merge("lake", "/lake", {}, cast(Any, None), [], merge.MergeCache())


def test_a_table_was_altered_since_the_stage() -> None:
    with refusal(StageAgain, "target-altered"):
        rehearsal._refuse_altered("lake", "/lake", {}, True)


def test_the_name_of_a_table_was_not_looked_up() -> None:
    with refusal(InvalidPipeline, "table-not-looked-up"):
        raise target_table.unknown_path_error(NAMED)


def test_another_table_has_the_place_of_a_name() -> None:
    with refusal(NotCommitted, "named-table-replaced"):
        raise target_table.other_named_table_error(NAMED, None)


def test_another_table_has_the_place_of_a_source() -> None:
    with refusal(SourceLost, "named-table-replaced"):
        raise delta_rules.other_table_id_error(DeltaSource(table="shop.orders"), "/orders", "another")


def test_a_table_of_a_catalog_is_no_delta_table() -> None:
    with refusal(InvalidPipeline, "not-a-delta-table"):
        catalog._to_table("shop.orders", {"format": "parquet"})


# ---- Kafka


def test_brokers_end_transactions_unsafely() -> None:
    transactions: Any = SimpleNamespace(read_transaction_version=lambda: 1)
    with refusal(InvalidPipeline, "transaction-version-unsafe"):
        check._require_safe_pool(TOPIC, transactions)


def test_a_transaction_has_ended_after_its_rows() -> None:
    with refusal(NotCommitted, "transaction-not-open"):
        open_transactions._require_open(TOPIC, "id-1", None, None)


def test_a_transaction_was_ended_by_another_process() -> None:
    from confluent_kafka import KafkaError, KafkaException

    target: Any = SimpleNamespace(sink="copy", config={})
    with refusal(Fenced, "transaction-taken-over"), producer._ErrorConverter(target):
        raise KafkaException(KafkaError(KafkaError._FENCED))


def test_rows_do_not_reach_the_brokers() -> None:
    target: Any = SimpleNamespace(sink="copy", config={"bootstrap.servers": "broker:9092"})
    with refusal(NotCommitted, "broker-not-writable"):
        raise producer._not_written_error(target, "Local: Message timed out")


def test_a_broker_refuses_a_request() -> None:
    client = BrokerClient({"bootstrap_servers": "broker:9092"})  # which imports kafka without its warnings
    from kafka.errors import InvalidRequestError

    with refusal(NotCommitted, "kafka-request-refused"):
        raise client._error_for_caller(InvalidRequestError("not so"))


def test_one_part_takes_longer_than_a_transaction() -> None:
    target: Any = SimpleNamespace(sink="copy", timeout=60.0)
    writing: Any = SimpleNamespace(_parallel_parts=1, _target=target, _max_timeout=lambda: 60.0)
    with refusal(OutcomeUnknown, "transaction-too-slow"):
        commit.Republisher._go_slower(writing, Part("0.parquet", 3), TimeoutError())


# ---- files and state


def test_spark_writes_files_elsewhere() -> None:
    file_system: Any = SimpleNamespace(make_durable=lambda folder: None, list_visible=lambda folder: [])
    with refusal(NotCommitted, "storage-not-shared"):
        files_stage.prepare_files(
            FileSink("files", "/files"), cast(Any, None), file_system, "/files", "/files/.staged", 3
        )


def test_a_bucket_is_missing() -> None:
    store: Any = SimpleNamespace(list_entries=fail(FileNotFoundError("NoSuchBucket")))
    with pytest.raises(UnsuitableTarget) as unsuitable:
        ObjectFiles(store).check("s3://no-such-bucket/files")
    assert unsuitable.value.code == "bucket-missing"


def test_a_state_has_another_key(tmp_path: Path) -> None:
    writer = StateWriter(StateSink("open", schema="page STRING, n INT", key=["page"]), str(tmp_path))
    with refusal(InvalidPipeline, "state-shape-changed"):
        writer._check_same_shape({"schema": "page STRING", "key": ["page"]})


# ---- Spark and its cluster


def test_a_report_has_no_file_system() -> None:
    with refusal(InvalidPipeline, "report-not-writable"):
        Report.for_job("webdav://host/state", "job-1")


def test_a_driver_runs_on_another_cluster() -> None:
    with refusal(NotCommitted, "connection-changed"):
        driver._require_same_cluster("spark", "yarn://one", lambda conn_id: "yarn://two")


def test_spark_lacks_jars_of_a_store() -> None:
    error = stores.explain_missing_jar(Exception(stores.PROTOCOL[1]), "sink 'lake' cannot be written.")
    assert error is not None
    with refusal(InvalidPipeline, "store-jars-missing"):
        raise error


def test_classes_of_spark_are_not_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1, stdout="no memory"))
    with refusal(NotCommitted, "spark-classes-not-prepared"):
        jvm._train(tmp_path, tmp_path / "draft.jsa")


def test_spark_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm.importlib.util, "find_spec", lambda name: None)
    with refusal(InvalidPipeline, "pyspark-missing"):
        jvm.spark_home()


def test_a_user_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from onceonly.spark import session

    monkeypatch.setattr(session.pwd, "getpwuid", fail(KeyError("getpwuid(): uid not found")))
    with refusal(InvalidPipeline, "user-without-name"):
        session._check_user()


def test_a_connect_server_refuses_a_token() -> None:
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    from onceonly.spark.connect import explain_refused_token

    client = SimpleNamespace(close=lambda: None)
    with refusal(InvalidPipeline, "spark-token-refused"), explain_refused_token("sc://host:15002/;token=x", client):
        raise SparkConnectGrpcException("Invalid authentication token")
