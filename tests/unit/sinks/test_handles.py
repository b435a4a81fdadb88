"""Handles that come back damaged, or forged, from the state table: refused before a sink does anything with them."""

from __future__ import annotations

import json
from abc import ABCMeta
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from codes import raises

from onceonly.checkpoint import sink as protocol
from onceonly.checkpoint import verification
from onceonly.checkpoint.sink import Sink
from onceonly.errors import CannotPublish
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, FileSink, StateSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime.live_services import LiveServices
from onceonly.settings import Settings
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.sinks.files.sink import FileWriter
from onceonly.sinks.kafka.sink import KafkaWriter
from onceonly.sinks.staging.checked_sink import CHECKED_CAPABILITIES, CheckedSink, HandleCheck
from onceonly.sinks.staging.handles import check_handle
from onceonly.sinks.state.sink import StateWriter
from onceonly.testing.fakes import FakeReceipts

WRITERS: dict[str, type[Sink]] = {"delta": DeltaWriter, "files": FileWriter, "state": StateWriter}
SHAPES: dict[str, Any] = {
    "delta": DeltaWriter.handle_shape,
    "files": FileWriter.handle_shape,
    "kafka": KafkaWriter.handle_shape,
    "state": StateWriter.handle_shape,
}
TXN = "0123456789ab-flights-out-1-1-abcdef"
FILE = {"staged": "day=1/part-0.parquet", "final": "day=1/flights-0.parquet", "bytes": 5, "sha256": "aa"}
OLD_DELTA = {"folder": f"staged-{TXN}", "files": 1, "table_id": "t"}
TX = {"id": "onceonly-1", "producer_id": 1, "epoch": 0, "partitions": [["late", 0, None, 5], ["late", 1, 3, 4]]}
GOOD: dict[str, dict[str, Any]] = {
    "delta": {
        "kind": "delta",
        "uri": "/lake/out",
        "table_id": "t",
        "fingerprint": "f",
        "added": [{"name": "new", "type": "string", "nullable": True, "metadata": {}}],
        "app_id": "onceonly/0123456789ab/flights/out",
        "folder": f"staged-{TXN}",
        "publish": "delta-rs",
        "files": 1,
        "rows": 1,
        "bytes": 1,
        "where": [["day", "=", "2013-01-01"]],
        "replaces": OLD_DELTA,
        "of a newer version": 1,
    },
    "files": {
        "kind": "files",
        "target": "/lake/out",
        "format": "parquet",
        "txn": TXN,
        "folder": f"/lake/.out.staged/{TXN}/data",
        "manifest": "_onceonly/flights.manifest",
        "rows": 1,
        "bytes": 5,
        "files": [FILE],
        "retracts": [{"manifest": "_onceonly/old.manifest", "files": [FILE]}],
    },
    "kafka": {
        "kind": "kafka",
        "guarantee": "exactly-once",
        "mode": "staged",
        "cluster": "c",
        "transaction_version": 2,
        "topics": {"late": "id"},
        "txn": TXN,
        "slot": None,
        "folder": f"/spool/{TXN}",
        "rows": 1,
        "bytes": 1,
        "parts": [{"spool": "0.parquet", "rows": 1, "tx": TX}, {"spool": "1.parquet", "rows": 0, "tx": None}],
        "opened_at": "2013-01-01T00:00:00+00:00",
        "timeout": 900.0,
    },
    "state": {
        "kind": "state",
        "txn": None,
        "schema": "page STRING",
        "key": ["page"],
        "runs": [{"folder": "a/changes", "rows": 1, "files": 1, "bytes": 9, "listing": "00"}],
        "retired": [{"folder": "b/changes", "rows": 1, "files": 1, "bytes": 9, "listing": "00", "since": 1}],
        "forget": [],
        "rows": 0,
    },
}
Change = Callable[[Any], Any]


@pytest.mark.parametrize("kind", GOOD)
def test_what_a_sink_makes_is_let_through(kind: str) -> None:
    check_handle("out", kind, SHAPES[kind], GOOD[kind])


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("delta", lambda h: h.pop("table_id"), "table_id is missing"),
        ("delta", lambda h: h.update(kind="kafka"), "kind is 'kafka'"),
        ("delta", lambda h: h.update(files="1"), "files is '1'"),
        ("delta", lambda h: h.update(rows=-1), "rows is -1"),
        ("delta", lambda h: h.update(folder="../other"), "folder is '../other'"),
        ("delta", lambda h: h.update(folder="_delta_log"), "folder is '_delta_log'"),
        ("delta", lambda h: h.update(app_id="another/application"), "app_id is"),
        ("delta", lambda h: h.update(publish="rsync"), "publish is 'rsync'"),
        ("delta", lambda h: h["replaces"].update(folder="staged-x/../.."), "replaces.folder is"),
        ("delta", lambda h: h.update(added=["new"]), "added[0] is 'new'"),
        ("delta", lambda h: h.update(where=[["day", "="]]), "where is"),
        ("files", lambda h: h["files"][0].update(final="../../victim"), "files[0].final is '../../victim'"),
        ("files", lambda h: h["files"][0].update(staged="/etc/passwd"), "files[0].staged is '/etc/passwd'"),
        ("files", lambda h: h.update(manifest="_onceonly/../../x"), "manifest is"),
        ("files", lambda h: h["retracts"][0].update(manifest="/x"), "retracts[0].manifest is"),
        ("files", lambda h: h["retracts"][0]["files"][0].update(final=".."), "retracts[0].files[0].final is"),
        ("files", lambda h: h.update(txn="x"), "txn is 'x'"),
        ("kafka", lambda h: h["parts"][0].update(spool="../x"), "parts[0].spool is '../x'"),
        ("kafka", lambda h: h["parts"][0]["tx"].pop("producer_id"), "parts[0].tx.producer_id is missing"),
        ("kafka", lambda h: h["parts"][0]["tx"].update(epoch="0"), "parts[0].tx.epoch is '0'"),
        ("kafka", lambda h: h["parts"][0]["tx"]["partitions"].append(["late", 2]), "partitions[2] is"),
        ("kafka", lambda h: h.update(topics=["late"]), "topics is"),
        ("state", lambda h: h["runs"][0].update(folder=5), "runs[0].folder is 5"),
        ("state", lambda h: h.update(txn="../x"), "txn is '../x'"),
        ("state", lambda h: h["retired"][0].pop("since"), "retired[0].since is missing"),
    ],
)
def test_a_damaged_handle_is_refused_with_what_is_wrong(kind: str, change: Change, said: str) -> None:
    handle = json.loads(json.dumps(GOOD[kind]))
    change(handle)
    with raises(CannotPublish, "handle-damaged") as refused:
        check_handle("out", kind, SHAPES[kind], handle)
    assert said in refused.value.why


@pytest.fixture
def parts(tmp_path: Path) -> LiveServices:
    return LiveServices(Settings.from_env({"ONCEONLY_HOME": str(tmp_path), "ONCEONLY_PROJECT": str(tmp_path)}))


SINKS = [DeltaSink("delta", "lake/out"), FileSink("files", "lake/files"), StateSink("state", "page STRING", ["page"])]


@pytest.mark.parametrize("name", ["delta", "files", "state"])
def test_no_step_of_a_live_sink_takes_one(name: str, parts: LiveServices, tmp_path: Path) -> None:
    live = parts.sink(Pipeline(name="flights", source=KafkaSource("t"), transform="m:f", sinks=SINKS), name)
    bad, receipts = {**GOOD[name], "rows": "many"}, FakeReceipts(tmp_path / "receipts")
    steps: dict[str, Callable[[], Any]] = {
        "commit": lambda: live.commit(bad, 1, receipts),
        "fence": lambda: live.fence(bad, 1),
        "retraction": lambda: live.retraction(None, [bad], None),  # type: ignore[arg-type]
        "check_replace": lambda: live.check_replace(bad),
        "read_staged": lambda: live.read_staged(bad),
        "evidence": lambda: live.evidence(handle=bad),
    }
    for step in (steps[step] for step in steps if hasattr(live, step)):
        with raises(CannotPublish, "handle-damaged"):
            step()


CAPABILITIES = [
    capability
    for module in (protocol, verification)
    for capability in vars(module).values()
    if type(capability) is ABCMeta and capability.__module__ == module.__name__ and not issubclass(capability, Sink)
]


def test_a_checked_sink_can_have_every_capability() -> None:
    assert set(CHECKED_CAPABILITIES) == set(CAPABILITIES)


@pytest.mark.parametrize("name", ["delta", "files", "state"])
def test_a_checked_sink_has_the_capabilities_of_its_sink(name: str, parts: LiveServices) -> None:
    live = parts.sink(Pipeline(name="flights", source=KafkaSource("t"), transform="m:f", sinks=SINKS), name)
    for capability in CAPABILITIES:
        assert isinstance(live, capability) is issubclass(WRITERS[name], capability)


STEPS = [
    (interface, wrapper, name)
    for interface, wrapper in {Sink: CheckedSink, **CHECKED_CAPABILITIES}.items()
    for name, member in vars(interface).items()
    if not name.startswith("_") and isinstance(member, FunctionType | property)
]


class Untouched:
    """A sink each of whose methods fails the test."""

    name, handle_shape = "out", SHAPES["delta"]

    def __getattr__(self, step: str) -> Any:
        raise AssertionError(f"{step} was reached")


@pytest.mark.parametrize(("interface", "wrapper", "step"), STEPS, ids=lambda part: getattr(part, "__name__", part))
def test_a_checked_sink_delegates_every_step(interface: type, wrapper: type, step: str) -> None:
    assert step in vars(wrapper), "an inherited default would answer in place of the sink"


@pytest.mark.parametrize(("interface", "wrapper", "step"), STEPS, ids=lambda part: getattr(part, "__name__", part))
def test_every_step_that_takes_a_handle_checks_it(interface: type, wrapper: Any, step: str) -> None:
    hints = dict(getattr(vars(interface)[step], "__annotations__", {}))
    hints.pop("return", None)
    if step == "discard":
        return  # it has to work with a damaged handle, too
    bad = {**GOOD["delta"], "rows": "many"}
    checked = object.__new__(wrapper)
    HandleCheck.__init__(checked, Untouched(), "delta")
    for damaged in [name for name, hint in hints.items() if "Handle" in hint]:
        arguments: dict[str, Any] = {name: [] if "Sequence" in hint else None for name, hint in hints.items()}
        arguments[damaged] = [bad] if "Sequence" in hints[damaged] else bad
        with raises(CannotPublish, "handle-damaged"):
            getattr(checked, step)(**arguments)


def test_a_forged_handle_deletes_nothing_elsewhere(parts: LiveServices, tmp_path: Path) -> None:
    victim = tmp_path / "victim" / "keep"
    victim.parent.mkdir()
    victim.write_text("precious")
    target = tmp_path / "lake" / "files"
    target.mkdir(parents=True)
    forged = {
        **GOOD["files"],
        "target": str(target),
        "files": [],
        "replaces": {"manifest": "_onceonly/old", "files": [{**FILE, "final": "../../victim/keep"}]},
    }
    live = parts.sink(Pipeline(name="flights", source=KafkaSource("t"), transform="m:f", sinks=SINKS), "files")
    with raises(CannotPublish, "handle-damaged"):
        live.commit(forged, 1, FakeReceipts(tmp_path / "receipts"))
    assert victim.read_text() == "precious"
