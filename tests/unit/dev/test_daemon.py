"""A background process is ended whole, also the parts that no longer show where they came from."""

import sys
from pathlib import Path

import psutil
import pytest

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
