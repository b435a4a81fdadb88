"""`onceonly status` says on which checkpoints nobody works, as far as this machine can know."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from unit.world import Durable

from onceonly.cli import main
from onceonly.pipeline.sinks import DeltaSink
from onceonly.runtime import owners


def owner_of(pid: int, start: str) -> str:
    return f"cli:{socket.gethostname()}:{owners._read_pid_scope()}:{pid}:{start}"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Durable:
    monkeypatch.delenv("ONCEONLY_STATE", raising=False)
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path))
    return Durable(tmp_path, sinks=[DeltaSink("lake", "lake"), DeltaSink("files", "files")])


def status(*arguments: str) -> str:
    done = CliRunner(env={"COLUMNS": "400"}).invoke(main, ["status", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_what_an_ended_process_has_left_is_named_with_the_way_out(world: Durable) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    world.plan(owner_of(ended.pid, "1"))
    for text in (status(), status("flights")):
        assert "Nobody works on flights epoch 1, which is planned: its owner (cli" in text
        assert "Recovery aborts it: nothing of it is published." in text
        assert "Settle it: onceonly recover flights" in text


def test_what_a_running_process_works_on_is_no_news(world: Durable) -> None:
    world.plan(owners.process_owner())
    assert "Nobody works" not in status() + status("flights")
