"""What Airflow's on_kill does to a stage: nothing of it goes on, and nothing of it is left."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from codes import raises
from integration.projects.project import Project, make_project, produce
from patience import PATIENCE

from onceonly.airflow import GateOperator, StageOperator, connections
from onceonly.airflow.connections import GateServices
from onceonly.checkpoint.model import State
from onceonly.dev.demo.standalone import wait_until
from onceonly.errors import NotCommitted
from onceonly.kafka.airflow_connections import read_variable
from onceonly.runtime import child_process, client_job, live_services, owners, spark_submit
from onceonly.runtime.spark_connection import SparkConnection
from onceonly.spark import progress, session

pytestmark = [pytest.mark.integration]

SLOW = """

def slow(batch):
    def wait(batches):
        import pathlib, time
        for rows in batches:
            pathlib.Path({file!r}).touch()
            time.sleep(600)
            yield rows
    return batch.selectExpr("CAST(partition AS BIGINT) AS n", "'a' AS part").mapInPandas(wait, "n BIGINT, part STRING")
"""


@pytest.fixture
def project(
    tmp_path: Path, broker: str, spark_server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Project:
    project = make_project(tmp_path, broker, spark_server, request.node.name.removeprefix("test_"))
    for name, value in project.env().items():
        monkeypatch.setenv(name, value)
    return project


def test_a_stage_on_spark_connect_is_interrupted(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    at_work = tmp_path / "at-work"
    module = tmp_path / f"transforms_{project.topic}.py"
    module.write_text(module.read_text() + SLOW.format(file=str(at_work)))
    produce(project, range(8))
    through = live_services.open_coordinator(project.parts)
    planned = through.plan(project.pipeline(transform="slow"), "run-1", owners.is_never_alive).checkpoint
    assert planned is not None
    told: list[str] = []
    job = client_job.make_stage_job(
        SparkConnection(remote=project.spark), told.append, lambda checkpoint, row: None, read_variable
    )

    def end() -> None:
        wait_until(lambda: at_work.exists() and any(map(tells, told)), "Spark is at work, and says so", PATIENCE)
        job.end()

    ended = threading.Thread(target=end)
    ended.start()
    with raises(NotCommitted, "staging-failed", match="could not be staged"):
        job.run("numbers_chained", planned.epoch, "run-1")
    ended.join()
    now = through.state_table.view("numbers_chained").checkpoint(planned.epoch)
    assert now is not None and now.state is State.PLANNED
    assert project.staged_folders() == []
    assert any(map(tells, told)), told


def tells(line: str) -> bool:
    return "tasks done" in line


def test_a_gate_on_spark_connect_is_interrupted(project: Project, tmp_path: Path) -> None:
    at_work = tmp_path / "at-work"
    parts = GateServices(project.settings, target=SparkConnection(remote=project.spark))
    parts.end()  # nothing was asked of Spark yet

    def slow(batches: Any) -> Any:
        for rows in batches:
            at_work.touch()
            time.sleep(600)
            yield rows

    ended = threading.Thread(target=lambda: (wait_until(at_work.exists, "Spark is at work", PATIENCE), parts.end()))
    ended.start()
    with pytest.raises(Exception, match="OPERATION_CANCELED"):
        parts.spark().range(8).mapInPandas(slow, "id BIGINT").collect()
    ended.join()


def test_a_job_of_spark_submit_ends_with_all_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "trap '' TERM; sleep 600 & echo $!; wait; wait"  # it pays no heed to SIGTERM
    in_its_place(monkeypatch, script)
    monkeypatch.setattr(client_job, "_find_checkpoint", lambda *_: None)
    told: list[str] = []
    job: Any = client_job.make_stage_job(SparkConnection(), told.append, lambda checkpoint, row: None, read_variable)
    ended = threading.Thread(target=lambda: (wait_until(lambda: told, "the job has begun", PATIENCE), job.end()))
    ended.start()
    started = time.monotonic()
    with raises(NotCommitted, "job-killed", match="9"):
        job.run("numbers", 1, "run-1")
    ended.join()
    assert time.monotonic() - started < PATIENCE
    assert wait_until(lambda: all(map(_gone, (job.process.pid, int(told[0])))), "both processes have ended", PATIENCE)


def in_its_place(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A shell script in the place of spark-submit."""
    monkeypatch.setattr(spark_submit, "find_spark_submit", lambda: "/bin/bash")
    monkeypatch.setattr(spark_submit, "build_client_arguments", lambda *_: ["-c", script])


def output(monkeypatch: pytest.MonkeyPatch, script: str, say: Any) -> Any:
    """Run a shell script in the place of spark-submit."""
    in_its_place(monkeypatch, script)
    monkeypatch.setattr(client_job, "_find_checkpoint", lambda *_: None)
    job: Any = client_job.make_stage_job(SparkConnection(), say, lambda checkpoint, row: None, read_variable)
    job.run("numbers", 1, "run-1")
    return job


def test_output_that_is_not_utf_8_ends_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    job = output(monkeypatch, r"printf 'caf\xe9 from a library\n'", told.append)
    assert (job.process.returncode, told) == (0, ["caf\ufffd from a library"])


def test_a_job_whose_task_runs_out_of_time_can_take_leave(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    left = tmp_path / "left"
    script = f"trap 'touch {left}; exit 0' TERM; echo begun; while :; do sleep 0.1; done"
    monkeypatch.setattr(
        child_process, "TERM_GRACE_SECONDS", PATIENCE
    )  # on a busy machine, the shell's turn may come late

    def out_of_time(line: str) -> None:
        raise TimeoutError("execution_timeout")

    with pytest.raises(TimeoutError):
        output(monkeypatch, script, out_of_time)
    assert left.exists()


def test_a_job_whose_parent_has_ended_before_it_began_does_not_begin() -> None:
    job = "import onceonly.runtime.child_process as o; o.die_with_parent(parent=1 << 22); print('at work')"
    done = subprocess.run([sys.executable, "-c", job], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-9, "")


def test_a_job_whose_jvm_has_ended_before_it_began_does_not_begin() -> None:
    """It finds another parent, as any orphan does, and a port on which nobody listens any more."""
    late = (
        "import os, sys, onceonly.runtime.child_process as o; parent = os.getppid(); print('ready', flush=True)\n"
        "while os.getppid() == parent: pass\n"
        "o.die_with_jvm(); print('at work', flush=True)"
    )
    jvm = f"""import os, socket, subprocess, sys
listening = socket.create_server(("127.0.0.1", 0))
port = str(listening.getsockname()[1])
subprocess.Popen([sys.executable, "-c", {late!r}], env={{**os.environ, "PYSPARK_GATEWAY_PORT": port}}).wait()
"""
    with subprocess.Popen([sys.executable, "-c", jvm], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        assert parent.stdout.read() == ""  # its job has ended, too, and did nothing


def test_a_job_whose_jvm_listens_begins() -> None:
    with socket.create_server(("127.0.0.1", 0)) as jvm:
        job = "import onceonly.runtime.child_process as o; o.die_with_jvm(); print('at work')"
        env = {**os.environ, "PYSPARK_GATEWAY_PORT": str(jvm.getsockname()[1])}
        done = subprocess.run([sys.executable, "-c", job], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "at work\n")


def test_the_job_does_not_outlive_the_jvm_that_started_it() -> None:
    imports = "import time, onceonly.runtime.child_process as c"
    job = f"{imports}; c.die_with_parent(); print('ready', flush=True); time.sleep(600)"
    start = f"import subprocess as s, sys; p = s.Popen([sys.executable, '-c', {job!r}]); print(p.pid, flush=True)"
    parent = subprocess.Popen([sys.executable, "-c", f"{start}; p.wait()"], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    with parent.stdout:
        said = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
        parent.kill()
        parent.wait()
        pid = int(*(said - {"ready"}))
        assert wait_until(lambda: _gone(pid), "the job has ended, too", PATIENCE)


def test_on_kill_of_the_task_ends_the_job_that_it_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    operator = StageOperator(task_id="stage", pipeline="numbers", epoch=1)
    job = SimpleNamespace(run=lambda *_: operator.on_kill(), end=lambda: ended.append("by on_kill"))
    monkeypatch.setattr(connections, "read_spark_connection", lambda _: SparkConnection())
    monkeypatch.setattr(client_job, "make_stage_job", lambda *_: job)
    operator.on_kill()  # before it has begun there is nothing to end
    operator.execute({"ti": SimpleNamespace(dag_id="numbers", xcom_pull=lambda **_: "an owner"), "run_id": "a run"})
    assert ended == ["by on_kill"]


def _gone(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE  # not every container has someone to reap it
    return True


def test_on_kill_of_the_gate_interrupts_the_session_that_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    interrupted: list[int] = []
    operator = GateOperator(task_id="gate", pipeline="numbers", epoch=1)

    def open_session(*_: object) -> Any:
        number = len(opened)
        opened.append(SimpleNamespace(interruptAll=lambda: interrupted.append(number)))
        return opened[-1]

    def judge(parts: Any) -> Any:
        parts.spark()
        operator.on_kill()
        return SimpleNamespace(pipeline="numbers", epoch=1, gate=None, verdict=None, is_held=False)

    monkeypatch.setattr(connections, "read_spark_connection", lambda _: SparkConnection(remote="sc://somewhere"))
    monkeypatch.setattr(session, "session", open_session)
    monkeypatch.setattr(
        live_services, "open_coordinator", lambda parts, log: SimpleNamespace(gate=lambda *_: judge(parts))
    )
    operator.on_kill()  # before it has begun there is nothing to interrupt
    operator.execute({"ti": SimpleNamespace(dag_id="numbers", xcom_pull=lambda **_: "an owner"), "run_id": "a run"})
    assert wait_until(lambda: interrupted == [0], "it is interrupted", PATIENCE)
    assert len(opened) == 1
