"""`make demo`: the flights of January through Airflow, with two runs killed, and a proof by independent readers.

One run is killed while it stages, and Airflow's retry stages again. One is killed between its decision and publishing,
and the recovery DAG publishes. Each kill is SIGKILL to the process group.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from rich.console import Console
from rich.table import Table

from onceonly import waits
from onceonly.checkpoint.model import Checkpoint, State, Transaction
from onceonly.delta import txn_identifiers
from onceonly.dev.demo import flights, hold_file
from onceonly.dev.demo.load import LATE_TOPIC, load
from onceonly.dev.demo.proof import Proof, prove, prove_late
from onceonly.dev.demo.standalone import USER, Standalone, wait_until
from onceonly.dev.services import Services, machine
from onceonly.dev.services.daemon import Daemon
from onceonly.errors import NotCommitted
from onceonly.settings import Settings
from onceonly.statetable import location
from onceonly.statetable.table import StateTable
from onceonly.storage.durability import require_writable

PIPELINE = "flights"
RECOVERY = "onceonly_recovery"
MONTH = "2013-01"
LATE_SCHEMA = "schemas/late-flight.v1.avsc"


def run(exit_: bool) -> None:
    """Run the whole demo. Ctrl-C or closing its terminal leaves no process at any time."""
    console = Console()
    home = Settings.from_env().home / "demo"
    settings = replace(Settings.from_env(), home=home, state=str(home / "state"), bootstrap=None)
    spark = port("ONCEONLY_SPARK_PORT", 15002)
    services = Services(home, port=port("ONCEONLY_KAFKA_PORT", 19092), spark_port=spark)
    airflow = Standalone(settings, port("ONCEONLY_AIRFLOW_PORT", 8080), f"sc://localhost:{spark}")
    demo = Demo(settings, services, airflow, console)
    proven: bool | None = None
    with lock_folder(home), _stopping_everything(settings, airflow, console):
        clear(home)
        demo.start()
        demo.pipeline()
        proven = demo.show()
        if not exit_ and proven:
            console.print("\nPress Ctrl-C to stop everything.")
            signal.pause()
    if proven is None:
        raise SystemExit(130)  # Ctrl-C before there was a proof
    if not proven:
        raise SystemExit(1)


@contextmanager
def lock_folder(home: Path) -> Iterator[None]:
    """Refuse a second demo in the same folder: it would delete files of the first. Raises NotCommitted."""
    require_writable(home)
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_name("demo.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotCommitted(
                f"a demo is already running in {home}.",
                "A second one would delete its broker and its Airflow.",
                "Stop it with Ctrl-C, or use another folder for this one: ONCEONLY_HOME=…. Nothing was started.",
                code="demo-running",
            ) from None
        yield


def clear(home: Path) -> None:
    """Remove the files of an earlier demo, after stopping its processes."""
    Daemon(home / "airflow").stop()
    if home.exists():
        Services(home).down()
    shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _stopping_everything(settings: Settings, airflow: Standalone, console: Console) -> Iterator[None]:
    """Stop Airflow and the services when the block ends, also by a signal."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signals = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    for number in signals:  # SIGINT, too: a shell starts background jobs with SIGINT ignored
        signal.signal(number, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        console.print()
    finally:
        for number in signals:  # stopping takes a moment and must not be interrupted
            signal.signal(number, signal.SIG_IGN)
        console.print("stopping Airflow and the broker …")
        try:
            airflow.stop()
        finally:
            Services(settings.home).down()


def port(variable: str, usual: int) -> int:
    """Return the port of the environment, or the usual one, if it is free, else any."""
    return machine.prefer_port(int(os.environ.get(variable, str(usual))))


@dataclass
class Demo:
    settings: Settings
    services: Services
    airflow: Standalone
    console: Console

    limit: ClassVar[float] = 180.0  # seconds for one DAG run on two cores

    def start(self) -> None:
        """Start the broker, and then load flights and start Spark and Airflow in parallel."""
        with self._step("broker"):
            broker = self.services.up().bootstrap
            location.make(self.settings.state)
        with (
            self._step(f"Airflow at {self.airflow.url}, a Spark server for all runs, flights of {MONTH}"),
            ThreadPoolExecutor(2) as pool,
        ):
            spark_start = pool.submit(self.services.up, spark=True)
            flights_load = pool.submit(load, self.settings, "flights", flights.month_period(MONTH))
            self.airflow.start(
                {"ONCEONLY_NOTIFY": "onceonly.dev.demo:at_decision", "ONCEONLY_TRANSFORMS": "onceonly.dev.demo"}
            )
            for dag in (PIPELINE, RECOVERY):
                wait_until(lambda dag=dag: self.airflow.unpause(dag), f"Airflow has parsed DAG {dag}", 60)  # type: ignore[misc]
            spark_start.result()
            loaded = flights_load.result()
        self.console.print(
            f"  {loaded.loaded:,} flights in topic 'flights' on {broker}, Avro, {loaded.partitions} partitions"
        )

    def pipeline(self) -> None:
        """Start runs until the topic has no new records; the second and the third run are killed."""
        with self._step("run 1: without a failure"):
            self._finish(self.airflow.trigger(PIPELINE))
        with self._step("run 2: SIGKILL while staging, completed by Airflow's retry"):
            self._kill_stage()
        with self._step("run 3: SIGKILL between decision and publishing, completed by the recovery DAG"):
            self._kill_after_decision()
        number = 3
        while True:
            number += 1
            with self._step(f"run {number}"):
                run = self.airflow.trigger(PIPELINE)
                self._finish(run)
            if self.airflow.task_states(PIPELINE, run)["plan"] == "skipped":
                self.console.print("  no new data: nothing was planned")
                return

    def show(self) -> bool:
        """Print checkpoints, the proof, and where to look; returns whether the proof holds."""
        self.console.print(self._checkpoints())
        table = self.settings.locate("lake/flights")
        broker = self.settings.brokers(None)
        january = flights.month_period(MONTH)
        in_table = prove(table, january)
        in_topic = prove_late(broker, LATE_TOPIC, self.settings.project / LATE_SCHEMA, january)
        self.console.print(
            f"{_describe(in_table)} in the table (deltalake and pandas, whole rows)\n"
            f"{_describe(in_topic)} in topic '{LATE_TOPIC}' (a plain read_committed consumer)\n"
            f"  Airflow   {self.airflow.url}   login {USER} / {self.airflow.password}\n"
            f"  table     {table}\n"
            f"  topic     {LATE_TOPIC} on {broker}\n"
            f"  state     ONCEONLY_HOME={self.settings.home} onceonly status flights",
            highlight=False,
            soft_wrap=True,
        )
        return in_table.holds and in_topic.holds

    def _kill_stage(self) -> None:
        """Kill a run while it stages, and await its end: Airflow's retry stages again."""
        run = self.airflow.trigger(PIPELINE)
        checkpoint = wait_until(self._find_staging_checkpoint, "a stage is writing rows", self.limit, every=0.02)
        pid = int(checkpoint.claims[checkpoint.attempt].worker.rsplit(":", 1)[1])
        os.killpg(os.getpgid(pid), signal.SIGKILL)
        self.console.print(f"  killed attempt {checkpoint.attempt} of epoch {checkpoint.epoch} while it was writing")
        self._finish(run)

    def _find_staging_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint whose rows are being staged at the moment."""
        latest = StateTable(self.settings.state).view(PIPELINE).latest
        if latest is None or latest.state is not State.PLANNED or not latest.claims:
            return None
        txn: Transaction = latest.transaction("flights")
        folder = Path(self.settings.locate("lake/flights")) / (txn_identifiers.STAGED_PREFIX + txn.name)
        return latest if folder.exists() else None

    def _kill_after_decision(self) -> None:
        """Kill a run between its decision and publishing, and let the recovery DAG publish."""
        file = hold_file(self.settings.home)
        file.touch()
        run = self.airflow.trigger(PIPELINE)
        pid = wait_until(lambda: int(file.read_text() or 0), "a commit task has taken its decision", self.limit)
        os.killpg(os.getpgid(pid), signal.SIGKILL)
        file.unlink()
        epoch = StateTable(self.settings.state).view(PIPELINE).head.epoch
        self.console.print(f"  killed the commit of epoch {epoch}: decided, not published")
        recovery = self.airflow.trigger(RECOVERY)
        self._finish(recovery, RECOVERY)
        self._finish(run)

    def _finish(self, run: str, dag: str = PIPELINE) -> None:
        """Wait for the end of a run. Raises NotCommitted: it did not succeed."""
        state = wait_until(lambda: self._final_state(dag, run), f"run {run} of {dag} has ended", self.limit)
        if state != "success":
            raise NotCommitted(
                f"run {run} of {dag} ended as {state}.",
                f"Tasks: {self.airflow.task_states(dag, run)}",
                f"Task logs: {self.airflow.folder / 'logs'}",
                code="demo-failed",
            )

    def _final_state(self, dag: str, run: str) -> str | None:
        """Return the state in which the run has ended; None: it has not."""
        state = self.airflow.run_state(dag, run)
        return state if state in ("success", "failed") else None

    def _checkpoints(self) -> Table:
        columns = ("epoch", "state", "offsets", "attempts", "flights", "late", "decision")
        table = Table(*columns, title="checkpoints of flights")
        state = StateTable(self.settings.state)
        view = state.view(PIPELINE)
        for epoch in range(1, view.head.epoch + 1):
            checkpoint = view.checkpoint(epoch)
            assert checkpoint is not None
            span = sum(range_.offset_count for range_ in checkpoint.ranges)
            rows = [checkpoint.handles.get(sink, {}).get("rows") for sink in ("flights", "late")]
            cells = (epoch, checkpoint.state.value, span, checkpoint.attempt, *rows, checkpoint.decision)
            table.add_row(*map(_format_cell, cells))
        return table

    @contextmanager
    def _step(self, title: str) -> Iterator[None]:
        started = time.monotonic()
        with waits.step(title):
            yield
        self.console.print(
            f"[green]✓[/] {title}  [dim]{time.monotonic() - started:.1f} s[/]", highlight=False, soft_wrap=True
        )


def _format_cell(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) else str(cell or "")


def _describe(proof: Proof) -> str:
    """Return the proof as the beginning of a line, which the place completes."""
    verdict = "[bold green]exactly once[/]" if proof.holds else "[bold red]NOT exactly once[/]"
    return f"{verdict}: {proof.expected:,} in the CSV, {proof.missing} missing, {proof.extra} extra of {proof.actual:,}"
