"""docs/how-to/existing-airflow.md as a reader follows it: the wheel, beside an Airflow that is there before."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable, QueryBuilder
from integration.programs import page
from integration.readers.kafka_reader import create_topic
from integration.services import installation
from integration.services.airflow_database import copy_database
from patience import PATIENCE

from onceonly.dev.demo.standalone import Standalone, wait_until
from onceonly.dev.services import Services, machine
from onceonly.dev.services.daemon import Daemon
from onceonly.settings import Settings

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.integration, pytest.mark.heavy]

PAGE = "how-to/existing-airflow.md"
BLOCKS = page.blocks(PAGE)
FOREIGN = ("ONCEONLY_", "AIRFLOW", "SPARK_", "PYTHON", "PYSPARK_", "VIRTUAL_ENV", "_AIRFLOW")
PAYMENTS = [(1, "Berlin", 1999), (2, "Paris", 4500), (3, "Berlin", -250)]
RUN_ID = re.compile(r"manual__[^\s|]+")


@dataclass
class ExistingAirflow(Standalone):
    """An Airflow in an environment of its own, with SQLite; nothing of it knows Onceonly."""

    python: Path = Path()
    exported: dict[str, str] = field(default_factory=dict)  # what the page has people export

    @property
    def folder(self) -> Path:
        return self.python.parents[2] / "airflow"

    def environment(self) -> dict[str, str]:
        environment = super().environment()
        del environment["AIRFLOW_CONN_SPARK"], environment["ONCEONLY_HOME"], environment["ONCEONLY_PROJECT"]
        return {
            **environment,
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.folder / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(self.folder / "plugins"),
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "2",  # seconds until new files are read
            "XDG_CACHE_HOME": str(self.folder.parent / "cache"),
            **self.exported,
        }

    def launch(self) -> None:
        """Start its processes, and wait until they are healthy."""
        clean = {name: "" for name in os.environ if name.startswith(FOREIGN)}
        command = [str(self.python), "-m", "airflow", "standalone"]
        Daemon(self.folder).start(command, self.port, {**clean, **self.environment()})
        wait_until(self.healthy, "Airflow is up", PATIENCE, self._require_running)


@dataclass
class Reader:
    """A person with a shell, who replaces the page's addresses and folder by their own."""

    airflow: ExistingAirflow
    folder: Path
    replacements: dict[str, str]
    working_folder: Path
    steps: list[page.Block] = field(default_factory=lambda: list(BLOCKS))

    def follow(self, first_words: str) -> str:
        """Run the next block, which begins so, in the one shell of this person. Returns what it printed."""
        block = self.steps.pop(0)
        assert block.commands.startswith(first_words), block.commands
        commands = block.commands
        for text, own in self.replacements.items():
            commands = commands.replace(text, own)
        end = self.folder / "end"
        script = f"set -eo pipefail\n{commands}\nprintf '%s\\0' \"$PWD\" > {end}\nenv -0 >> {end}\n"
        env = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.working_folder, env={**env, **self.airflow.environment()},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, f"{commands}\n{done.stdout}"
        where, *variables = end.read_text().split("\0")
        self.working_folder = Path(where)
        for name, _, value in (variable.partition("=") for variable in variables):
            if name.startswith("ONCEONLY_"):
                self.airflow.exported[name] = value
        assert block.shown is None or page.same(block.shown, done.stdout), done.stdout
        return done.stdout


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[str]:
    """The address of a broker that has the page's topic and its records."""
    services = Services(tmp_path / "broker", port=0)
    try:
        address = services.up().bootstrap
        create_topic(address, "payments", 2)
        producer = Producer({"bootstrap.servers": address})
        for number, shop, cents in PAYMENTS:
            producer.produce("payments", json.dumps({"id": number, "shop": shop, "cents": cents}))
        assert producer.flush(PATIENCE) == 0
        yield address
    finally:
        services.down()


@pytest.fixture
def airflow(tmp_path: Path) -> Iterator[ExistingAirflow]:
    """An Airflow that is there before Onceonly is."""
    python = installation.make_environment(tmp_path / "own" / "venv")
    installation.link_dependencies(python)
    existing = ExistingAirflow(Settings.from_env({}), machine.free_port(), python=python)
    copy_database(existing.folder)
    (existing.folder / "dags").mkdir()
    try:
        yield existing
    finally:
        existing.stop()


@pytest.fixture
def reader(airflow: ExistingAirflow, brokers: str, tmp_path: Path) -> Reader:
    return Reader(airflow, tmp_path, {"broker-1:9092": brokers, "/srv/onceonly": str(tmp_path / "srv")}, tmp_path)


def test_every_step_works_in_its_order(reader: Reader) -> None:
    airflow = reader.airflow
    text = (page.ROOT / "docs" / PAGE).read_text()
    assert "pip install '/path/to/checkout[airflow,kafka,spark]'" in text
    installation.install_offline(airflow.python, installation.build_wheel(reader.folder / "dist"))
    share_jars(reader)
    reader.follow("onceonly jars fetch")
    reader.follow("export ONCEONLY_PROJECT")
    reader.follow("onceonly state init")
    airflow.launch()

    reader.follow("airflow connections add spark")
    reader.follow("mkdir")
    reader.follow("cd")
    reader.follow("onceonly check")

    wait_until(lambda: is_parsed(airflow, "payments", "onceonly_recovery"), "Airflow has read the DAGs", PATIENCE)
    triggered = reader.follow("airflow dags unpause")
    run = RUN_ID.search(triggered)
    assert run, triggered
    wait_until(lambda: airflow.run_state("payments", run[0]) in ("success", "failed"), "the run ends", PATIENCE)
    assert airflow.run_state("payments", run[0]) == "success", airflow.task_states("payments", run[0])
    assert "payments" in reader.follow("onceonly status")
    assert reader.steps == []

    table = DeltaTable(str(reader.folder / "srv" / "home" / "lake" / "payments"))
    rows = QueryBuilder().register("payments", table).execute("SELECT id, shop, euros FROM payments ORDER BY id")
    published = [tuple(row.values()) for row in pa.table(rows.read_all()).to_pylist()]
    assert published == [(number, shop, cents / 100) for number, shop, cents in PAYMENTS]


def share_jars(reader: Reader) -> None:
    """Give the cache of this person the jars that are here, as if fetched: no test loads from an index."""
    onceonly = [str(reader.airflow.python.with_name("onceonly")), "jars", "--json"]
    env = {"PATH": os.environ["PATH"], "HOME": str(reader.folder), **reader.airflow.environment()}
    done = subprocess.run(
        onceonly, env=env, cwd=reader.folder, check=True, capture_output=True, text=True, timeout=PATIENCE
    )
    cache = Path(json.loads(done.stdout)["folder"])
    assert reader.airflow.folder.parent in cache.parents
    cache.parent.mkdir(parents=True)
    cache.symlink_to(Path(os.environ.get("ONCEONLY_JARS", str(ROOT / ".jars"))))


def is_parsed(airflow: Standalone, *dags: str) -> bool:
    """Whether the DAG processor has read these DAGs; they stay paused."""
    return set(dags) <= {dag["dag_id"] for dag in airflow.call("GET", "/dags")["dags"]}
