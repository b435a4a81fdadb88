"""How every command can end: each is provoked into each of its exit codes (docs/operations.md has the table)."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner
from person import seen
from unit.streaming_checkpoint import write_checkpoint
from unit.world import Durable, World, minutes

from onceonly.cli import main
from onceonly.coordinator.coordinator import Coordinator
from onceonly.dev.demo import load, run
from onceonly.dev.services import Endpoints, Services
from onceonly.errors import InvalidPipeline, NotCommitted, OutcomeUnknown
from onceonly.probe import storage as probed_storage
from onceonly.probe.findings import Finding, Verdict
from onceonly.probe.trials import CLOCKS
from onceonly.runtime import live_services, spark_stage, transforms
from onceonly.settings import Settings
from onceonly.sources import json_inference
from onceonly.spark import check as spark_check
from onceonly.spark import jars, jvm
from onceonly.statetable.table import Snapshot
from onceonly.testing.fakes import FakeSink, FakeSource
from onceonly.views import queries

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"
PIPELINES = """
from onceonly import DeltaSink, Gate, KafkaSource, Pipeline

def pipeline(**more):
    sinks = [DeltaSink("lake", "lake"), DeltaSink("files", "files")]
    return Pipeline(name="flights", source=KafkaSource("flights"), transform="jobs.flights:clean", sinks=sinks, **more)

flights = pipeline()
strict = pipeline(gate=Gate(min_rows={"lake": 1}))
typed, lake = KafkaSource("orders", "json", "orders.ddl"), DeltaSink("lake", "lake")
orders = Pipeline(name="orders", source=typed, transform="a:b", sinks=[lake])
held = pipeline(gate=Gate(min_rows={"lake": 1}, on_fail="hold"))
"""
Provoke = Callable[["Here"], list[Any]]  # what has happened before -> the command's arguments


@dataclass
class Here:
    """A pipeline on fakes in ONCEONLY_HOME, which the command line finds there."""

    home: Path
    patch: pytest.MonkeyPatch
    enter: Callable[[AbstractContextManager[Any]], Any]  # until the test ends
    mode: str = "chained"

    @property
    def world(self) -> World:
        """Made when it is first asked for."""
        if not hasattr(self, "_world"):
            self._world = Durable(self.home, mode=self.mode)
            parts: Any = self._world.parts
            parts.settings, parts.kafka = Settings.from_env(), lambda *_: SimpleNamespace(describe=lambda: "brokers")
            self.patch.setattr(live_services, "LiveServices", lambda settings, connections: parts)
        return self._world

    def staged(self) -> None:
        self.world.plan()
        self.world.stage()

    def fails(self, kind: type, method: str, error: Exception) -> None:
        def failing(*_: Any, **__: Any) -> Any:
            raise error

        self.patch.setattr(kind, method, failing)

    def read_only(self) -> None:
        self.patch.setattr(os, "access", lambda *_, **__: False)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    for name in [name for name in os.environ if name.startswith("ONCEONLY_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    (tmp_path / "pipelines.py").write_text(PIPELINES)
    monkeypatch.setenv("ONCEONLY_PROJECT", str(tmp_path))
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(transforms, "load", lambda *_: None)
    monkeypatch.setattr(spark_check, "notes", lambda settings: [])

    def stage(parts: Any, through: Any, name: str, epoch: int, owner: str) -> Any:
        return through.stage(name, epoch, parts.produce, owner)

    monkeypatch.setattr(spark_stage, "stage", stage)
    with ExitStack() as until_the_end:
        yield Here(tmp_path / "home", monkeypatch, until_the_end.enter_context)


# ---- run, check


def runs(name: str) -> Provoke:
    def provoke(here: Here) -> list[Any]:
        assert here.world
        return [f"pipelines.py:{name}"]

    return provoke


def fails_its_gate(name: str) -> Provoke:
    def provoke(here: Here) -> list[Any]:
        here.world.parts.inspector(here.world.pipeline).find("critical")
        return [f"pipelines.py:{name}"]

    return provoke


def publishing_is_unknown(here: Here) -> list[Any]:
    here.world.lake.fail("commit", "unknown")
    return ["pipelines.py:flights"]


def no_topic(here: Here) -> list[Any]:
    here.fails(FakeSource, "check", InvalidPipeline("topic 'flights' does not exist."))
    return runs("flights")(here)


def values(*found: bytes, error: Exception | None = None) -> Provoke:
    """What the last records of the topic are."""

    def sampled(*_: Any) -> Iterator[bytes]:
        if error:
            raise error
        yield from found

    def provoke(here: Here) -> list[Any]:
        here.patch.setattr(json_inference, "read_last_values", sampled)
        return runs("orders")(here)

    return provoke


# ---- status, describe, recover, sweep


def known(*more: Any) -> Provoke:
    def provoke(here: Here) -> list[Any]:
        here.staged()
        return ["flights", *more]

    return provoke


def nobody(*more: Any) -> Provoke:
    def provoke(here: Here) -> list[Any]:
        here.staged()
        return ["nobody", *more]

    return provoke


def has_unreadable_rows(here: Here) -> list[Any]:
    here.staged()
    here.fails(Snapshot, "history", OutcomeUnknown("the rows cannot be read."))
    return ["flights"]


def has_lost_rows(here: Here) -> list[Any]:
    here.staged()
    here.world.commit()
    here.world.lake.remove(here.world.now().transaction("lake").name)
    return ["flights"]


def has_a_silent_target(here: Here) -> list[Any]:
    here.staged()
    here.world.commit()
    here.fails(FakeSink, "verify", ConnectionError("no route to host"))
    return ["flights"]


def cannot_settle(here: Here) -> list[Any]:
    here.staged()
    here.world.lake.fail("commit", "refused")
    return ["--force"]


def cannot_publish(here: Here) -> list[Any]:
    here.staged()
    here.world.lake.fail("rehearse", "action")
    return ["--force"]


def nowhere_to_record(*args: Any) -> Provoke:
    def provoke(here: Here) -> list[Any]:
        here.staged()
        here.read_only()
        return list(args)

    return provoke


def cannot_sweep(here: Here) -> list[Any]:
    here.staged()
    here.fails(FakeSink, "leftovers", OutcomeUnknown("the broker does not answer."))
    return []


def keeps_state(here: Here) -> list[Any]:
    checkpoint = here.world.run("run-1")
    pipeline = SimpleNamespace(state=SimpleNamespace(name="totals"))
    shown = SimpleNamespace(epoch=checkpoint.epoch, definition=SimpleNamespace(pipeline=pipeline))
    here.patch.setattr(Coordinator, "forget", lambda *_: shown)
    return ["flights"]


def cannot_forget(here: Here) -> list[Any]:
    here.staged()
    here.fails(Coordinator, "forget", OutcomeUnknown("the storage does not answer."))
    return ["flights"]


# ---- approve, abort, resolve, rewind

EPOCH = ["flights", 1, "--reason", "x"]
GIVE_UP = [*EPOCH, "--give-up", "lake"]


def is_held(then: Callable[[Here], None] = lambda here: None) -> Provoke:
    def provoke(here: Here) -> list[Any]:
        fails_its_gate("held")(here)
        assert invoke("run", "pipelines.py:held").exit_code == 4
        then(here)
        return EPOCH

    return provoke


def is_decided(*args: Any) -> Provoke:
    def provoke(here: Here) -> list[Any]:
        here.staged()
        here.world.lake.fail("commit", "refused")
        with pytest.raises(OutcomeUnknown):
            here.world.commit()
        return list(args)

    return provoke


def cannot_be_fenced(here: Here) -> list[Any]:
    is_decided()(here)
    for step in ("commit", "fence"):
        here.fails(FakeSink, step, OutcomeUnknown("it does not answer."))
    return GIVE_UP


def has_gone_on(then: Callable[[Here], None] = lambda here: None) -> Provoke:
    def provoke(here: Here) -> list[Any]:
        here.world.run("run-1")
        here.world.put(10)
        here.world.run("run-2")
        then(here)
        return EPOCH

    return provoke


def cannot_be_taken_back(here: Here) -> list[Any]:
    has_gone_on()(here)
    here.world.lake.fail("commit", "unknown")
    return EPOCH


def rewind_is_refused(here: Here) -> list[Any]:
    has_gone_on()(here)
    here.world.lake.fail("rehearse", "action")
    return EPOCH


LAKE = ["flights", "lake", "--reason", "x"]


def has_lost_its_target(then: Callable[[Here], None] = lambda here: None) -> Provoke:
    def provoke(here: Here) -> list[Any]:
        here.world.run("run-1")
        shutil.rmtree(here.world.lake.folder)
        then(here)
        return LAKE

    return provoke


def has_its_target(here: Here) -> list[Any]:
    here.world.run("run-1")
    return LAKE


def is_to_be_repaired(name: str = "flights", then: Callable[[Here], None] = lambda here: None) -> Provoke:
    def provoke(here: Here) -> list[Any]:
        has_lost_its_target(then)(here)
        return [f"pipelines.py:{name}", "lake", "--reason", "x"]

    return provoke


def fails_the_gate(here: Here) -> None:
    here.world.parts.inspector(here.world.pipeline).find("critical")


def leaves_a_gap(until: int, then: Callable[[Here], None] = lambda here: None) -> Provoke:
    """Nothing covers minutes 1 and 2."""

    def provoke(here: Here) -> list[Any]:
        asked = minutes(1, until)
        here.mode = "interval"
        for start in (0, 3):
            here.world.run(f"run-{start}", interval=minutes(start, start + 1))
        then(here)
        return ["flights", "--interval", asked.start.isoformat(), asked.end.isoformat(), "--reason", "x"]

    return provoke


# ---- state, services, demo


def nothing(here: Here) -> list[Any]:
    return []


def cannot_be_written(here: Here) -> list[Any]:
    here.read_only()
    return []


def on_ftp(here: Here) -> list[Any]:
    here.patch.setenv("ONCEONLY_STATE", "ftp://host/state")
    return []


def moved(here: Here) -> list[Any]:
    assert here.world
    shutil.copytree(here.home / "state", here.home / "copy")
    here.patch.setenv("ONCEONLY_STATE", str(here.home / "copy"))
    return []


def has_a_damaged_pipeline(here: Here) -> list[Any]:
    def damaged(*_: Any) -> None:
        raise OutcomeUnknown("flights: the state table is damaged.", "", "")

    here.staged()
    here.patch.setattr(queries, "list_recent", damaged)
    return []


def has_no_table(here: Here) -> list[Any]:
    here.patch.setenv("ONCEONLY_STATE", str(here.home / "nowhere"))
    return []


def has_a_table(here: Here) -> list[Any]:
    assert here.world
    return []


def moved_and_cannot_be_written(here: Here) -> list[Any]:
    moved(here)
    here.read_only()
    return []


def forward(ends: str) -> Provoke:
    def provoke(here: Here) -> list[Any]:
        here.world.run("run-1")
        return ["pipelines.py:flights", "--decision", 7, "--ends", ends, "--reason", "x"]

    return provoke


def forward_without_a_place(here: Here) -> list[Any]:
    given = forward("flights:0=5")(here)
    here.read_only()
    return given


def starts(here: Here) -> list[Any]:
    here.patch.setattr(Services, "up", lambda *_: Endpoints("127.0.0.1:1"))
    return []


def without_jars(here: Here) -> list[Any]:
    here.patch.setenv("ONCEONLY_JARS", str(here.home / "nowhere"))
    return []


def below_a_file(here: Here) -> list[Any]:
    return [here.home.parent / "pipelines.py" / "orders"]


def has_a_home_below_a_file(here: Here) -> list[Any]:
    here.patch.setenv("XDG_DATA_HOME", str(here.home.parent / "pipelines.py" / "data"))
    return ["bash"]


def written_before(here: Here) -> list[Any]:
    assert invoke("init").exit_code == 0
    return []


def has_the_jars(here: Here) -> list[Any]:
    here.patch.setattr(jars, "fetch", lambda *_: ["spark"])
    return []


def prepares(here: Here) -> list[Any]:
    here.patch.setattr(jars, "list_missing", lambda *_: [])
    here.patch.setattr(jvm, "make_archive", lambda _: True)
    return []


def cannot_prepare(here: Here) -> list[Any]:
    here.patch.setattr(jars, "list_missing", lambda *_: [])
    here.fails(jvm, "make_archive", NotCommitted("Spark's classes could not be prepared."))  # type: ignore[arg-type]
    return []


def without_any_jar(here: Here) -> list[Any]:
    here.patch.setenv("ONCEONLY_JARS", str(here.home / "nowhere"))
    return []


def adopts_a_group(offset: int, then: Callable[[Here], None] = lambda here: None) -> Provoke:
    """Its topic ends at 5."""

    def provoke(here: Here) -> list[Any]:
        here.world.source.commit_group("old", {0: offset})
        then(here)
        return ["pipelines.py:flights", "--group", "old", "--write"]

    return provoke


def adopts_beside_a_damaged_table(here: Here) -> list[Any]:
    folder = here.home.parent / "checkpoint"
    write_checkpoint(folder, committed=1, planned=2)
    (here.home / "lake" / "_delta_log").mkdir(parents=True)
    (here.home / "lake" / "_delta_log" / f"{0:020d}.json").write_text('{"txn": ')
    assert here.world
    return ["pipelines.py:flights", "--checkpoint", str(folder)]


def no_repository(here: Here) -> list[Any]:
    here.fails(jars, "fetch", NotCommitted("the jars cannot be fetched."))  # type: ignore[arg-type]
    return []


def is_shown(here: Here) -> list[Any]:
    here.patch.setattr(run, "run", lambda exit_: None)
    return []


def beside_another(here: Here) -> list[Any]:
    here.enter(run.lock_folder(Settings.from_env().home / "demo"))
    return []


def loads(error: Exception | None) -> Provoke:
    def provoke(here: Here) -> list[Any]:
        def done(settings: Settings, topic: str, period: Any, progress: Any) -> load.Loaded:
            if error:
                raise error
            return load.Loaded(topic, "127.0.0.1:1", True, 4, period, 10, 0, 1.0)

        here.patch.setattr(load, "load", done)
        return []

    return provoke


def probes(outcome: bool | Exception) -> Provoke:
    """`outcome`: whether a promise is broken."""

    def probe(*_: Any) -> tuple[list[Finding], int]:
        if isinstance(outcome, Exception):
            raise outcome
        return [Finding(CLOCKS, "1 try", Verdict.BROKEN if outcome else Verdict.KEPT)], 1

    def provoke(here: Here) -> list[Any]:
        here.patch.setattr(probed_storage, "probe", probe)
        return [here.home.parent]

    return provoke


def given(*args: Any) -> Provoke:
    return lambda here: list(args)


CODES: dict[str, dict[int, Provoke]] = {
    "run": {
        0: runs("flights"),
        1: fails_its_gate("strict"),
        2: given("nowhere.py"),
        3: publishing_is_unknown,
        4: fails_its_gate("held"),
    },
    "status": {0: known(), 2: nobody(), 3: has_a_damaged_pipeline},
    "describe": {0: known(1), 2: known(7)},
    "lineage": {0: known("--checkpoint", 1), 2: known("--checkpoint", 7)},
    "metrics": {0: has_a_damaged_pipeline, 2: has_no_table},
    "recover": {0: known(), 1: nowhere_to_record(), 2: nobody(), 3: cannot_settle, 4: cannot_publish},
    "check": {0: runs("flights"), 2: given("nowhere.py"), 5: no_topic},
    "verify": {
        0: known(),
        1: known("--report", "/no/such/folder/report.html"),
        2: nobody(),
        3: has_unreadable_rows,
        6: has_lost_rows,
        7: has_a_silent_target,
    },
    "probe": {0: probes(False), 1: probes(NotCommitted("a worker has died.")), 2: given("ftp://x/y"), 8: probes(True)},
    "infer": {
        0: values(b'{"id": 1}'),
        1: values(error=NotCommitted("no broker answers.")),
        2: values(b"no object"),
    },
    "approve": {
        0: is_held(),
        1: is_held(Here.read_only),
        2: known(1, "--reason", "x"),
        3: is_held(lambda here: here.world.lake.fail("commit", "unknown")),
        4: is_held(lambda here: here.world.lake.fail("rehearse", "action")),
    },
    "abort": {0: known(1, "--reason", "x"), 1: is_decided(*EPOCH), 2: nobody(1, "--reason", "x")},
    "resolve": {0: is_decided(*GIVE_UP), 1: nowhere_to_record(*GIVE_UP), 2: is_decided(*EPOCH), 3: cannot_be_fenced},
    "rewind": {
        0: has_gone_on(),
        1: has_gone_on(then=Here.read_only),
        2: nobody(1, "--reason", "x"),
        3: cannot_be_taken_back,
        4: rewind_is_refused,
    },
    "repair": {
        0: is_to_be_repaired(),
        1: is_to_be_repaired("strict", fails_the_gate),
        2: given("nowhere.py", "lake", "--reason", "x"),
        3: is_to_be_repaired(then=lambda here: here.world.lake.fail("commit", "unknown")),
        4: is_to_be_repaired("held", fails_the_gate),
    },
    "accept-loss": {
        0: has_lost_its_target(),
        1: has_lost_its_target(Here.read_only),
        2: has_its_target,
    },
    "skip": {
        0: leaves_a_gap(3),
        1: leaves_a_gap(3, Here.read_only),
        2: leaves_a_gap(2),
    },
    "adopt": {
        0: adopts_a_group(5),
        1: adopts_a_group(5, Here.read_only),
        2: adopts_a_group(6),
        3: adopts_beside_a_damaged_table,
    },
    "sweep": {0: known(), 1: nowhere_to_record(), 2: nobody(), 3: cannot_sweep},
    "forget": {0: keeps_state, 1: nowhere_to_record("flights"), 2: known(), 3: cannot_forget},
    "state init": {0: nothing, 1: cannot_be_written, 2: on_ftp},
    "state relocate": {0: moved, 1: moved_and_cannot_be_written, 2: nothing},
    "state fork": {0: moved, 1: moved_and_cannot_be_written, 2: nothing},
    "state forward": {0: forward("flights:0=5"), 1: forward_without_a_place, 2: forward("flights")},
    "services up": {0: starts, 1: without_jars, 2: given("--port", "x")},
    "services status": {0: nothing, 2: given("now")},
    "services down": {0: nothing, 1: cannot_be_written, 2: given("now")},
    "explain": {0: given("target-went-back"), 2: given("no-such-word")},
    "help": {0: nothing, 2: given("no-such-command")},
    "completions": {0: given("bash", "--print"), 1: has_a_home_below_a_file, 2: given("dash")},
    "init": {0: nothing, 1: below_a_file, 2: written_before},
    "jars fetch": {0: has_the_jars, 1: no_repository, 2: given("flink")},
    "jars prepare": {0: prepares, 1: cannot_prepare, 2: without_any_jar},
    "jars packages": {0: nothing, 2: given("now")},
    "demo run": {0: is_shown, 1: beside_another, 2: given("now")},
    "demo load": {
        0: loads(None),
        1: loads(NotCommitted("no broker answers.")),
        2: given("--all", "--month", "2013-01"),
        3: loads(OutcomeUnknown("a delivery failed.")),
    },
}


LOOKING = ("check", "describe", "lineage", "metrics", "status", "verify")  # at a state table, and change nothing in it
CHANGING = (
    *(
        "abort",
        "accept-loss",
        "adopt",
        "approve",
        "forget",
        "recover",
        "repair",
        "resolve",
        "rewind",
        "run",
        "skip",
        "sweep",
    ),
    *("state fork", "state forward", "state init", "state relocate"),
)
WITHOUT_STATE = (
    *("completions", "demo load", "demo run", "explain", "help", "infer", "init", "jars fetch", "jars packages"),
    *("jars prepare", "probe", "services down", "services status", "services up"),
)


def invoke(command: str, *args: Any) -> Any:
    return CliRunner().invoke(main, [*command.split(), *map(str, args)])


def commands(group: click.Group = main, above: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


COMMANDS = dict(commands())
every_command = pytest.mark.parametrize("name", COMMANDS)


def test_every_command_is_in_the_table() -> None:
    assert CODES.keys() == COMMANDS.keys()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [(name, code) for name, codes in CODES.items() for code in codes])
def test_each_exit_code_of_each_command(name: str, code: int, here: Here) -> None:
    args = CODES[name][code](here)
    result = invoke(name, *args, *_seen(name, here))
    assert result.exit_code == code, result.output
    if code in (1, 3, 4, 5, 8):
        assert "✗ " in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOKING)
def test_a_command_that_looks_names_the_state_table(name: str, here: Here) -> None:
    args = [] if name == "metrics" else CODES[name][0](here)
    table = str(here.home / "state")
    shown = invoke(name, *args).stdout
    assert f"State table: {table} (ONCEONLY_HOME says so)" in shown.replace("\n", "")
    if any("--json" in option.opts for option in COMMANDS[name].params):
        answer = json.loads(invoke(name, *args, "--json").stdout)
        assert (answer["state_table"], answer["state_table_from"]) == (table, "ONCEONLY_HOME")


def test_every_command_looks_or_changes_or_needs_no_state_table() -> None:
    assert sorted([*LOOKING, *CHANGING, *WITHOUT_STATE]) == sorted(COMMANDS)


def _seen(name: str, here: Here) -> tuple[str, ...]:
    """The number of what is shown now, for the commands of people."""
    if all("--seen" not in option.opts for option in COMMANDS[name].params):
        return ()
    epoch = 1 if name in ("approve", "abort", "resolve") else None
    return seen(here.world.state, "flights", epoch)


@every_command
def test_an_option_that_does_not_exist_is_wrong_input(name: str, here: Here) -> None:
    assert invoke(name, *_something(name), "--unheard-of").exit_code == 2


@every_command
@pytest.mark.parametrize(("error", "code"), [(ZeroDivisionError(), 3), (KeyboardInterrupt(), 130)])
def test_what_nobody_expects(name: str, error: BaseException, code: int, here: Here) -> None:
    def failing(*_: Any) -> Any:
        raise error

    here.patch.setattr(Settings, "from_env", failing)
    assert invoke(name, *_something(name)).exit_code == code


def test_who_forwards_need_have_no_name(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    given = forward("flights:0=5")(here)
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 1_000_580_000)
    result = invoke("state forward", *given, *seen(here.world.state, "flights"))
    assert result.exit_code == 0, result.output
    assert "by uid 1000580000" in result.stdout


def _something(name: str) -> list[str]:
    """Values for all that the command requires."""
    values = {"integer": "1", "integer range": "1", "text": "x"}
    found: list[str] = []
    for param in COMMANDS[name].params:
        if param.required:
            value = values[param.type.name]
            found += [param.opts[0], *[value] * param.nargs] if isinstance(param, click.Option) else [value]
    return [*found, *(["--give-up", "lake"] if name == "resolve" else [])]


def test_the_table_for_people_says_the_same() -> None:
    rows = re.findall(r"^\| `([a-z -]+)` \| ([\d, ]+) \|", OPERATIONS.read_text(encoding="utf-8"), re.M)
    assert {name: set(map(int, codes.split(", "))) for name, codes in rows} == {n: {*c} for n, c in CODES.items()}
