"""A broker, a Spark server and a pipeline in a folder of their own, and faults for some minutes."""

from __future__ import annotations

import itertools
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import click

from onceonly.checkpoint.model import Event
from onceonly.dev.chaos.airflow_runs import AirflowRuns, explain_absence
from onceonly.dev.chaos.damages import DAMAGES, damage
from onceonly.dev.chaos.faults import Injector, mount_disk, unmount_disk
from onceonly.dev.chaos.observers import Observer, Sender
from onceonly.dev.chaos.project import COPY, PARTITION_COUNT, PIPELINE, SOURCE, ChaosProject
from onceonly.dev.chaos.report import Report
from onceonly.dev.chaos.runs import MAX_RUN_SECONDS, Runs
from onceonly.dev.chaos.schedule import FaultKind, make_schedule
from onceonly.dev.chaos.verifying import verify
from onceonly.dev.services.far_broker import FarBroker, Proxy
from onceonly.dev.services.spark import SparkConnect
from onceonly.errors import OnceonlyError
from onceonly.kafka.transactions import Transactions
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable
from onceonly.testing.history import Fate, History, find_anomalies

TOPIC_SECONDS = 30.0
PARTS = ("services", "airflow", "disk", "project", "home", "runs.log")  # of the folder, beside the page and the history


class SteadySpark(SparkConnect):
    """A server that has the same token after a restart: those that go on meanwhile have no other."""

    def _draw_token(self) -> None:
        if self.token() is None:
            super()._draw_token()


@dataclass
class Chaos:
    """One run.

    Args:
        violation: what is damaged behind the product's back, to see that it is found: "duplicate" adds a file to the
            table once more, "loss" deletes a row, "copy-duplicate" adds one to the topic; "" damages nothing.
        has_airflow: Airflow schedules runs, too.
        keeps_all: state and targets are kept, also where nothing is wrong.
    """

    folder: Path
    seed: int
    seconds: float
    violation: str = ""
    has_airflow: bool = False
    keeps_all: bool = False
    say: Callable[[str], None] = print
    history: History = field(default_factory=History)

    def run(self) -> Report:
        """Run it, and return what was found. Nothing is left of it but files."""
        report = Report(self.seed, self.seconds / 60, self._repeating_command(), began=_format_time())
        project = ChaosProject(self.folder)
        with ExitStack() as stack, _interruptible():
            skipped = self._prepare_disk(project, stack, report)
            if not self.has_airflow:
                skipped[FaultKind.AIRFLOW_KILL] = "there is no Airflow"
            project.write()
            injector, sender = self._start_parts(project, stack, skipped)
            try:
                self._let_happen(injector, sender, report)
            finally:
                report.ended = _format_time()
                self.history.write(self.folder / "history.jsonl")
                (self.folder / "report.md").write_text(report.to_markdown(), "utf-8")
                if self.keeps_all or report.violations or not report.is_complete:
                    self._keep_disk(project)
        return report

    def _repeating_command(self) -> str:
        words = f"python -m onceonly.testing.chaos --minutes {self.seconds / 60:g} --seed {self.seed}"
        words += "" if self.has_airflow else " --no-airflow"
        return f"{words} --seed-violation {self.violation}" if self.violation else words

    def _keep_disk(self, project: ChaosProject) -> None:
        """Copy state and targets from a disk that ends with this process."""
        if project.disk.is_mount():
            shutil.copytree(project.home, self.folder / "home", dirs_exist_ok=True)

    # ---- before

    def _prepare_disk(self, project: ChaosProject, stack: ExitStack, report: Report) -> dict[FaultKind, str]:
        reason = mount_disk(project.disk)
        stack.callback(unmount_disk, project.disk)
        if not reason:
            return {}
        report.notes.append(f"No full disk: {reason}.")
        return {FaultKind.FULL_DISK: reason}

    def _start_parts(
        self, project: ChaosProject, stack: ExitStack, skipped: dict[FaultKind, str]
    ) -> tuple[Injector, Sender]:
        proxy = Proxy()
        stack.callback(proxy.close)
        broker, spark = FarBroker(self.folder, proxy), SteadySpark(self.folder, 0)
        stack.callback(broker.daemon.stop)
        stack.callback(spark.daemon.stop)
        with self._step("a broker and a Spark server"):
            spark.launch()
            broker.start()
            spark.wait()
            _create_topics(broker.near)
        settings = project.settings(broker.far)
        state = StateTable.make(settings.state)
        running = spark.daemon.running()
        assert running is not None
        address = spark.address(running.port)
        environment = project.environment(broker.far, address, spark.token() or "")
        airflow = None
        if self.has_airflow:
            airflow = AirflowRuns(self.folder, settings, address, environment)
            stack.callback(airflow.stop_server)
            with self._step("Airflow"):
                airflow.start_server()
        runs = Runs(project.project, project.pipeline_file, environment, self.folder / "runs.log")
        stack.callback(runs.end)
        observer = Observer(project, self.history, broker.near)
        injector = Injector(project, state, runs, broker, proxy, spark, observer, skipped, airflow)
        return injector, Sender(self.history, broker.near)

    # ---- the faults

    def _let_happen(self, injector: Injector, sender: Sender, report: Report) -> None:
        runs, observer, airflow = injector.runs, injector.observer, injector.airflow
        sender.start()
        observer.start()
        runs.start()
        if airflow is not None:
            airflow.start()
        self._inject_all(injector, report)
        sender.stop()
        runs.stop()
        if airflow is not None:
            airflow.end()
            airflow.stop_server()
        with self._step("runs until nothing is left"):
            report.violations += _settle(runs)
        if self.violation:
            report.notes.append(f"A violation was seeded (--seed-violation {self.violation}): it has to be found.")
            damage(self.violation, injector.project.table, injector.broker.near)
        observer.stop()
        report.notes += [*sender.describe_failures(), *observer.describe_failures()]
        self._check(injector, report)
        report.is_complete = True

    def _inject_all(self, injector: Injector, report: Report) -> None:
        begin = time.monotonic()
        for fault in make_schedule(self.seed, self.seconds):
            time.sleep(max(0.0, begin + fault.at - time.monotonic()))
            if time.monotonic() > begin + self.seconds:
                report.notes.append("Faults took longer than the seed has foreseen: its last ones were left out.")
                break
            effect = injector.inject(fault)
            report.injected += not effect.startswith("skipped")
            report.faults.append((fault, effect))
            self.say(f"{fault}: {effect}")
        time.sleep(max(0.0, begin + self.seconds - time.monotonic()))

    def _check(self, injector: Injector, report: Report) -> None:
        with self._step("the check of what readers saw"):
            injector.observer.finish()
            report.violations += map(str, find_anomalies(self.history))
        if not any(send.fate is Fate.OK for send in self.history.sends):
            report.violations.append("nothing was sent: this run shows nothing")
        report.violations += injector.violations
        report.violations += [f"a process ended unexpectedly: {line}" for line in injector.runs.unexpected]
        report.violations += _find_open(injector)
        with self._step("onceonly verify --deep"):
            runs = injector.runs
            verified = verify(runs.project, runs.environment, self.folder / "verify.md")
        report.verification = verified.text
        report.violations += verified.violations
        report.outcomes = dict(runs.outcomes + (injector.airflow.outcomes if injector.airflow else Counter()))
        report.figures = self._count(injector, report)

    def _count(self, injector: Injector, report: Report) -> dict[str, object]:
        events = Counter(row.event for row in injector.state.history(PIPELINE))
        fates = Counter(send.fate.value for send in self.history.sends)
        reads = self.history.reads
        return {
            "faults": report.injected,
            "numbers sent (acknowledged, aborted, unknown)": f"{fates['ok']}, {fates['fail']}, {fates['info']}",
            "looks of readers": len(reads),
            "records that they saw": sum(len(read.records) for read in reads),
            "checkpoints committed": events[Event.COMMITTED],
            "attempts aborted": events[Event.ABORTED],
            "attempts staged": events[Event.STAGED],
            "violations": len(report.violations),
        }

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.say(f"{what}: {time.monotonic() - begin:.1f} s")


def _format_time() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does, so that nothing is left."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _create_topics(bootstrap: str) -> None:
    from confluent_kafka import admin

    topics = [admin.NewTopic(name, PARTITION_COUNT, 1) for name in (SOURCE, COPY)]  # type: ignore[attr-defined]
    client = admin.AdminClient({"bootstrap.servers": bootstrap})  # it has to outlive its answers
    for created in client.create_topics(topics).values():
        created.result(TOPIC_SECONDS)


def _settle(runs: Runs) -> list[str]:
    """Run until nothing is left. Returns what stands in the way."""
    end, answer = time.monotonic() + MAX_RUN_SECONDS, {}
    while time.monotonic() < end:
        runs.finish(runs.start_command("recover", PIPELINE, "--force"))
        answer = runs.finish(runs.start_run())
        if answer.get("result") == "no_new_data":
            return []
        if answer.get("result") == "committed":  # one of many that were left
            end = time.monotonic() + MAX_RUN_SECONDS
    return [f"runs do not come to an end: {answer}"]


def _find_open(injector: Injector) -> list[str]:
    """Return what is still open: a checkpoint, or a transaction that holds readers up."""
    violations = []
    for checkpoint in injector.state.view(PIPELINE).open:
        violations.append(f"epoch {checkpoint.epoch} is still {checkpoint.state.value}")
    with Transactions({"bootstrap_servers": injector.broker.near}) as transactions:
        for transactional_id in transactions.list_open(f".*{injector.state.id}.*"):
            violations.append(f"the transaction {transactional_id} is still open")
    return violations


@click.command()
@click.option(
    "--minutes", default=10.0, show_default=True, help="How long faults happen; starting and checking add some."
)
@click.option("--seed", type=int, help="Of the faults; drawn unless given.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where all files go; it must not exist. By default chaos/SEED in ONCEONLY_HOME.",
)
@click.option("--schedule", "only_shows", is_flag=True, help="Print the faults of this seed, and start nothing.")
@click.option(
    "--seed-violation",
    type=click.Choice(DAMAGES),
    help="Add rows to the table twice, delete one, or send one to the topic again: it has to be found.",
)
@click.option(
    "--airflow/--no-airflow", "has_airflow", default=None, help="A second scheduler; by default where it is installed."
)
@click.option("--keep", is_flag=True, help="Keep the broker's data, state and targets also where nothing is wrong.")
def main(
    minutes: float,
    seed: int | None,
    folder: Path | None,
    only_shows: bool,
    seed_violation: str | None,
    has_airflow: bool | None,
    keep: bool,
) -> None:
    """Run a pipeline on a broker, a Spark server and an Airflow of its own, break everything around it for some
    minutes, and check what came of it.

    Everything is in one folder and ends with this command: no other process, broker or file is touched. The page of
    what was done and found is FOLDER/report.md. Exit code 0: no violation; 1: there is one.
    """
    seed = time.time_ns() % 1_000_000 if seed is None else seed
    if only_shows:
        for fault in make_schedule(seed, minutes * 60):
            click.echo(str(fault))
        return
    folder = make_folder(folder, seed)
    has_airflow = _choose_airflow(has_airflow)
    click.echo(f"seed {seed}, in {folder}")
    chaos = Chaos(folder, seed, minutes * 60, seed_violation or "", has_airflow, keep, click.echo)
    try:
        report = chaos.run()
    except OnceonlyError as error:
        raise click.ClickException(str(error)) from error
    if not report.violations and not keep:
        for part in PARTS:
            shutil.rmtree(folder / part, ignore_errors=True)
    click.echo(f"{report.verdict}\n{folder / 'report.md'}")
    for violation in report.violations:
        click.echo(f"- {violation}")
    raise SystemExit(1 if report.violations else 0)


def make_folder(folder: Path | None, seed: int) -> Path:
    """Create the folder of the run: the one that was named, or a new one of the seed."""
    if folder is None:
        home = Settings.from_env().home / "chaos"
        names = itertools.chain([f"{seed}"], (f"{seed}-{number}" for number in itertools.count(2)))
        folder = next(home / name for name in names if not (home / name).exists())
    elif folder.exists():
        raise click.UsageError(f"{folder} exists: name another one by --folder.")
    folder.mkdir(parents=True)
    return folder.absolute()


def _choose_airflow(wished: bool | None) -> bool:
    absence = explain_absence()
    if wished and absence:
        raise click.UsageError(f"--airflow: {absence}. Run: pip install 'onceonly[airflow]'")
    if wished is None and absence:
        click.echo(f"Without Airflow: {absence}.")
    return not absence if wished is None else wished
