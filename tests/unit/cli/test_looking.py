"""The commands of people: what they show, what they ask, and what they take without a terminal."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from unit.cli.test_exit_codes import COMMANDS
from unit.coordinator.test_manual_actions import CASES
from unit.world import Durable, World

from onceonly.checkpoint.model import State
from onceonly.cli import main, manual
from onceonly.pipeline.gate import Gate
from onceonly.runtime import live_services
from onceonly.settings import Settings

pytestmark = pytest.mark.slow
COMMAND_OF = {
    "resolve_doubt": "resolve",
    "give_up": "resolve",
    "skip_offsets": "skip",
    "forward": "state forward",
    "accept_loss": "accept-loss",
}
APPROVE = ("approve", "flights", "1", "--reason", "a known gap")


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    for name in ("ONCEONLY_STATE", "ONCEONLY_NOTIFY", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path))
    monkeypatch.setenv("ONCEONLY_PROJECT", str(tmp_path))
    world = Durable(tmp_path, gate=Gate(min_rows={"lake": 9}, on_fail="hold"))
    parts: Any = world.parts
    parts.settings = Settings.from_env()
    monkeypatch.setattr(live_services, "LiveServices", lambda settings, connections: parts)
    world.plan()
    world.stage()
    world.parts.inspector(world.pipeline).find("critical")
    world.coordinator.gate("flights", 1, "run-1")
    return world


def onceonly(*args: str, answer: str = "") -> Result:
    return CliRunner(env={"COLUMNS": None}).invoke(main, args, input=answer)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manual, "is_interactive", lambda: True)


def test_every_command_with_a_reason_takes_what_was_seen() -> None:
    for name in {COMMAND_OF.get(action, action) for action in CASES}:
        assert "--seen" in _options(COMMANDS[name])
    of_people = {name for name, command in COMMANDS.items() if "--reason" in _options(command)}
    of_people.remove("run")  # it plans: what has changed since is settled or waited for first
    assert {name for name, command in COMMANDS.items() if "--seen" in _options(command)} == of_people


def _options(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


def test_without_a_terminal_the_number_is_needed(held: World) -> None:
    refused = onceonly(*APPROVE, "--json")
    assert (refused.exit_code, json.loads(refused.stdout)["code"]) == (2, "seen-missing")
    assert "onceonly describe flights 1" in json.loads(refused.stdout)["todo"]
    assert held.now().is_held


def test_describe_shows_the_command_to_copy(held: World) -> None:
    described = onceonly("describe", "flights", "1").stdout
    (command,) = re.findall(r"^ *onceonly (approve .*)$", described.split("What you can do")[1], re.MULTILINE)
    done = onceonly(*shlex.split(command.replace("…", "'a known gap'")))
    assert (done.exit_code, held.now().state) == (0, State.COMMITTED), done.output


def test_the_number_is_in_every_json(held: World) -> None:
    one = json.loads(onceonly("describe", "flights", "1", "--json").stdout)
    whole = json.loads(onceonly("status", "flights", "--json").stdout)
    assert one["seen"] == whole["checkpoints"][0]["seen"] == held.now().changed_seq
    assert whole["seen"] == held.state.view("flights").head.changed
    assert f"--seen {whole['seen']}" in onceonly("status", "flights").stdout


@pytest.mark.usefixtures("terminal")
def test_a_terminal_shows_and_asks(held: World) -> None:
    refused = onceonly(*APPROVE, answer="n\n")
    assert (refused.exit_code, held.now().is_held) == (1, True)
    assert "Gate: failed" in refused.stdout
    assert f"(as of row {held.now().changed_seq}) [y/N]" in refused.stdout
    assert onceonly(*APPROVE, answer="y\n").exit_code == 0
    assert held.now().state is State.COMMITTED


@pytest.mark.usefixtures("terminal")
def test_what_changes_during_the_question_counts(held: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: Any, **__: Any) -> bool:
        held.coordinator.abort("flights", 1, "wrong", who="bob", seen=looking_now(held))
        return True

    monkeypatch.setattr(click, "confirm", slow)
    refused = onceonly(*APPROVE)
    assert refused.exit_code == 2
    assert "aborted by bob (wrong)" in refused.stderr
    assert held.now().state is State.ABORTED


def looking_now(world: World) -> Any:
    from onceonly.coordinator.manual import Seen

    return Seen(world.now().changed_seq)


def test_an_outdated_number_is_refused_with_what_has_changed(held: World) -> None:
    number = str(held.now().changed_seq)
    aborted = onceonly("abort", "flights", "1", "--reason", "bad rows", "--seen", number)
    assert aborted.exit_code == 0
    refused = onceonly(*APPROVE, "--seen", number)
    assert refused.exit_code == 2
    assert "has changed since you looked at it" in refused.stderr and "(bad rows)" in refused.stderr
    again = onceonly("abort", "flights", "1", "--reason", "bad rows", "--seen", number)
    assert again.exit_code == 0, again.output
