"""A Spark Connect server that dies: its clients do not wait for it for minutes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.programs.children import output, start
from patience import PATIENCE

from onceonly.dev.services.spark import TOKEN, SparkConnect

pytestmark = pytest.mark.integration
CLIENT = """
import sys
from onceonly.settings import Settings
from onceonly.spark import connect
from onceonly.spark.session import session

connect.MAX_RETRIES = 3  # a second in all: what is tested is that nothing else waits
spark = session(Settings.from_env({"SPARK_REMOTE": sys.argv[1]}))
print("counted", spark.range(5).count(), flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    try:
        spark.range(5).count()
    except Exception as error:
        print("failed", type(error).__name__, flush=True)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SparkConnect]:
    """One of the test's own."""
    server = SparkConnect(tmp_path, 0)
    server.launch()
    server.wait()
    yield server
    server.daemon.stop()


def client(address: str, token: str | None, calls: int) -> subprocess.Popen[str]:
    env = {**os.environ, TOKEN: token or ""}
    return start("-c", CLIENT, address, str(calls), env=env, stdin=subprocess.PIPE)


def test_a_client_whose_server_has_died_ends_soon(server: SparkConnect) -> None:
    running = server.daemon.running()
    assert running is not None and running.pid is not None
    idle, calling = (client(server.address(running.port), server.token(), calls) for calls in (0, 5))
    for child in (idle, calling):
        assert child.stdout is not None
        assert child.stdout.readline() == "counted 5\n"
    os.killpg(running.pid, signal.SIGKILL)
    began = time.monotonic()
    for child in (idle, calling):
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    said = [output(child, PATIENCE - (time.monotonic() - began)) for child in (idle, calling)]  # it took ten minutes
    assert "failed" not in said[0]
    assert said[1].count("failed SparkConnectGrpcException") == 5
    assert (idle.returncode, calling.returncode) == (0, 0)
