"""A background process is ended whole, also the parts that no longer show where they came from."""

import sys
from pathlib import Path

import psutil
import pytest
from codes import raises

from onceonly.dev.services import daemon as daemons
from onceonly.dev.services.daemon import Daemon

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={})
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(600)
"""


def wait_for(file: Path) -> int:
    while not (file.exists() and file.read_text()):
        pass
    return int(file.read_text())


@pytest.mark.slow
def test_a_child_that_lost_its_environment_is_ended_too(tmp_path: Path) -> None:
    daemon, file = Daemon(tmp_path), tmp_path / "child"
    daemon.start([sys.executable, "-c", PARENT, str(file)], 0, {})
    child = psutil.Process(wait_for(file))
    daemon.stop()
    assert not child.is_running()
    assert daemon.last() is None


def test_a_process_that_does_not_end_is_named_and_can_be_stopped_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(tmp_path)
    daemon.start([sys.executable, "-c", "import time; time.sleep(600)"], 0, {})
    started = daemon.last()
    assert started and started.pid
    with monkeypatch.context() as blocked:
        blocked.setattr(daemons, "EXIT_SECONDS", 0)
        for signal in ("terminate", "kill"):
            blocked.setattr(psutil.Process, signal, lambda process: None)
        with raises(daemons.ServiceFailed, "service-not-stopped") as refused:
            daemon.stop()
    assert str(started.pid) in refused.value.why
    assert psutil.pid_exists(started.pid)
    daemon.stop()
    assert not psutil.pid_exists(started.pid)
    assert daemon.last() is None
