"""The package as people have it: a wheel in an environment of its own, outside of this checkout, and nothing copied.

The environment has the locked dependencies by links to this one's, so that the test needs no package index; what leads
to the checkout is left out. That the wheel asks for all it needs is looked up in its metadata, and `make wheel`
installs it from an index.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import pytest
import requests
from deltalake import DeltaTable
from integration.readers.kafka_reader import until
from integration.services import installation
from packaging.requirements import Requirement
from patience import PATIENCE

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
EXTRAS = ("airflow", "gate", "kafka", "services", "spark")
FOREIGN = ("ONCEONLY_", "AIRFLOW", "SPARK_", "PYTHON", "PYSPARK_", "VIRTUAL_ENV", "_AIRFLOW")
FROM_INDEX = os.environ.get("ONCEONLY_WHEEL") == "index"
ORDERS = 1_000
FILL_TOPIC = f"""
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from onceonly.settings import Settings
broker = {{"bootstrap.servers": Settings.from_env().brokers(None)}}
admin = AdminClient(broker)
for made in admin.create_topics([NewTopic("numbers", 2), NewTopic("copies", 2)]).values():
    made.result({PATIENCE})
producer = Producer(broker)
for number in range({ORDERS}):
    producer.produce("numbers", str(number))
assert not producer.flush({PATIENCE})
"""
SHOW_HANDLE = """
import json
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable
print(json.dumps(dict(StateTable(Settings.from_env().state).view("copies").checkpoint(1).handles["copies"])))
"""
RUNTIME_MODULES = (
    "java.se,jdk.crypto.ec,jdk.incubator.vector,jdk.management,jdk.naming.dns,jdk.security.auth,jdk.security.jgss,"
    "jdk.unsupported,jdk.zipfs"
)
COPIES = """
from onceonly import KafkaSink, KafkaSource, Pipeline

copies = Pipeline(
    name="copies",
    source=KafkaSource("numbers"),
    transform="copies:same",
    sinks=[KafkaSink("copies", topic="copies", format="raw")],
)


def same(batch):
    return batch.select("key", "value")
"""
PIPELINE = "dags/pipelines/orders.py"


@dataclass
class Installed:
    """An environment with the wheel, and a project that `onceonly init` has written."""

    python: Path
    project: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.project / ".onceonly"

    def run(self, *command: str, **env: str) -> str:
        """What a command of that environment prints, in the project's folder."""
        done = subprocess.run(
            [str(self.python.with_name(command[0])), *command[1:]],
            cwd=self.project,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        return {**kept, **self.environment, "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"}

    def rows(self) -> int:
        return int(DeltaTable(str(self.home / "lake" / "orders")).to_pyarrow_table().num_rows)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installation.build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a fresh environment with the wheel and what its extras ask for."""
    made = installation.make_environment(tmp_path_factory.mktemp("installed") / "venv")
    if FROM_INDEX:
        package = f"onceonly[{','.join(EXTRAS)}] @ {wheel.as_uri()}"
        installation.uv("pip", "install", "--python", str(made), package, "pytest")
    else:
        installation.install_offline(made, wheel)
    return made


@pytest.fixture(scope="module")
def installed(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """With a broker that its own commands have started."""
    found = Installed(python, tmp_path_factory.mktemp("people") / "orders")
    found.project.mkdir()
    found.run("onceonly", "init")
    found.environment["XDG_CACHE_HOME"] = str(found.project.parent / "cache")
    cache = Path(json.loads(found.run("onceonly", "jars", "--json"))["folder"])
    assert found.project.parent / "cache" in cache.parents
    cache.parent.mkdir(parents=True)
    cache.symlink_to(ROOT / ".jars")  # as if fetched; the command finds them complete
    assert json.loads(found.run("onceonly", "jars", "fetch", "--json"))["fetched"] == []
    found.run("onceonly", "services", "up", "--port", "0")
    yield found
    found.run("onceonly", "services", "down")


def test_the_wheel_has_what_is_needed_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        entry_points = file.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    needed = {"py.typed", "runtime/jobs/stage.py", "runtime/jobs/gate.py", "spark/jars/ivy.xml"}
    needed |= {"spark/jars/ivysettings.xml", "airflow/ui/templates/page.html", "airflow/ui/static/onceonly.css"}
    needed |= {"spark/jars/onceonly-jvm.jar", "cli/project/dags/NAME.py.template", "cli/project/.gitignore.template"}
    needed |= {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")} | {"docs/alerts.rules.yml"}
    assert {f"onceonly/{name}" for name in needed} <= names
    assert not [name for name in names if name.endswith((".svg", ".png"))]
    assert {name.split("/")[0].split("-")[0] for name in names} == {"onceonly"}
    for group in ("airflow.plugins", "apache_airflow_provider", "console_scripts", "onceonly.connections"):
        assert f"[{group}]" in entry_points


@pytest.mark.parametrize("target", ["wheel", "sdist"])
@pytest.mark.parametrize("damage", ["no jar", "another source"])
def test_without_the_jar_of_its_sources_nothing_is_built(tmp_path: Path, target: str, damage: str) -> None:
    """Who builds from a checkout that was not set up is told: the package would be slow, for no reason that shows."""
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "src", checkout / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("docs", "tools"):
        shutil.copytree(ROOT / folder, checkout / folder)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    build = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(tmp_path / "dist")]
    subprocess.run(build, cwd=checkout, check=True, capture_output=True, timeout=PATIENCE)
    if damage == "no jar":
        next(checkout.rglob("onceonly-jvm.jar")).unlink()
    else:
        (checkout / "src" / "java" / "onceonly" / "kafka" / "More.java").write_text("package onceonly.kafka;")
    refused = subprocess.run(build, cwd=checkout, capture_output=True, text=True, timeout=PATIENCE)
    assert refused.returncode != 0
    assert "Run: make setup" in refused.stderr


def test_the_extras_are_what_is_locked(python: Path) -> None:
    """Each requirement of the extras is there, in a version that it allows."""
    code = "import importlib.metadata as m, json; print(json.dumps(m.requires('onceonly')))"
    said = subprocess.run([str(python), "-I", "-c", code], check=True, capture_output=True, text=True, timeout=PATIENCE)
    wanted = [Requirement(load) for load in json.loads(said.stdout)]
    asked = [
        requirement
        for requirement in wanted
        if not requirement.marker or any(requirement.marker.evaluate({"extra": x}) for x in EXTRAS)
    ]
    assert len(asked) > 10
    assert [
        str(requirement)
        for requirement in asked
        if not requirement.specifier.contains(metadata.version(requirement.name))
    ] == []


def test_the_package_comes_from_the_wheel(python: Path, tmp_path: Path) -> None:
    code = "import onceonly, onceonly.runtime.spark_submit as s; print(onceonly.__file__); print(s.program('stage'))"
    said = subprocess.run(
        [str(python), "-I", "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE
    )
    assert [line.startswith(str(python.parents[1])) for line in said.stdout.split()] == [True, True]


def test_the_wheel_shows_its_pages(python: Path, tmp_path: Path) -> None:
    for words, heading in ((("erase",), "# Erase a person"), (("kafka", "open-transactions"), "## Open transactions")):
        command = [str(python.with_name("onceonly")), "help", *words]
        shown = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE)
        assert shown.stdout.startswith(heading)


def test_a_new_project_runs_by_the_command_line(installed: Installed) -> None:
    assert "no test" not in installed.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    installed.run("python", "sample.py")
    installed.run("onceonly", "check", PIPELINE)
    # Set to nothing it means: Spark in the process.
    done = json.loads(installed.run("onceonly", "run", PIPELINE, "--json", SPARK_REMOTE=""))
    assert (done["result"], installed.rows()) == ("committed", ORDERS)
    assert "orders" in installed.run("onceonly", "status")


def test_the_wheel_has_chaos(installed: Installed) -> None:
    words = ("python", "-m", "onceonly.testing.chaos", "--minutes", "0.15", "--seed", "39")
    assert "kill for" in installed.run(*words, "--schedule")


@pytest.mark.heavy
def test_chaos_runs_from_the_wheel(installed: Installed) -> None:
    words = ("python", "-m", "onceonly.testing.chaos", "--minutes", "0.15", "--seed", "39", "--no-airflow")
    assert "No violation" in installed.run(*words)
    assert "a run was killed" in (installed.home / "chaos" / "39" / "report.md").read_text()


@pytest.fixture(scope="module")
def java_runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Java without a compiler, as a server has it."""
    jlink = shutil.which("jlink", path=f"{os.environ.get('JAVA_HOME', '')}/bin{os.pathsep}{os.environ['PATH']}")
    if jlink is None:
        pytest.skip("this Java has no jlink, which makes one without a compiler")
    runtime = tmp_path_factory.mktemp("java") / "runtime"
    subprocess.run([jlink, "--add-modules", RUNTIME_MODULES, "--output", str(runtime)], check=True, timeout=PATIENCE)
    assert not (runtime / "bin" / "javac").exists()
    return runtime


def test_with_a_java_runtime_alone_spark_writes_to_kafka_itself(installed: Installed, java_runtime: Path) -> None:
    (installed.project / "copies.py").write_text(COPIES)
    installed.run("python", "-c", FILL_TOPIC)
    java = {"JAVA_HOME": str(java_runtime), "SPARK_REMOTE": "", "ONCEONLY_KAFKA_WRITER": "jvm"}
    done = json.loads(installed.run("onceonly", "run", "copies.py:copies", "--json", **java))
    assert done["result"] == "committed"
    handle = json.loads(installed.run("python", "-c", SHOW_HANDLE))
    assert (handle["writer"], handle["rows"]) == ("jvm", ORDERS)


@contextmanager
def served(airflow: Installed) -> Iterator[str]:
    """The address of an api-server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        "-m",
        "airflow",
        "api-server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    log = airflow.project.parent / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [str(airflow.python), *command],
            env=airflow.env,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until(lambda: server.poll() is not None or _answers(port), what="an answer of the api-server")
        assert server.poll() is None, log.read_text()[-3000:]
        yield f"http://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(PATIENCE)


def _answers(port: int) -> bool:
    try:
        return requests.get(f"http://127.0.0.1:{port}/api/v2/version", timeout=PATIENCE).ok
    except requests.ConnectionError:
        return False


@pytest.fixture
def airflow(installed: Installed) -> Installed:
    """The same environment as Airflow needs it: where the project is, and Spark."""
    folder = installed.project.parent / "airflow"
    folder.mkdir()
    (folder / "passwords.json").write_text('{"adam": "adam"}')
    installed.environment |= {
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(installed.project / "dags"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "adam:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(folder / "passwords.json"),
        "AIRFLOW__API_AUTH__JWT_SECRET": "only-for-this-test-and-long-enough-to-be-accepted-as-a-key-of-sha512",
        "AIRFLOW_CONN_SPARK": json.dumps({"conn_type": "generic", "host": "local[2]"}),
        "ONCEONLY_PROJECT": str(installed.project),
    }
    installed.run("python", "-m", "airflow", "db", "migrate")
    return installed


@pytest.mark.heavy
def test_airflow_runs_its_dag_and_serves_the_page(airflow: Installed) -> None:
    before = airflow.rows() if (airflow.home / "lake").exists() else 0
    airflow.run("python", "sample.py")
    airflow.run("python", "-m", "airflow", "dags", "reserialize")
    airflow.run("python", "-m", "airflow", "dags", "test", "orders")
    assert airflow.rows() == before + ORDERS
    with served(airflow) as url:
        login = requests.post(f"{url}/auth/token", json={"username": "adam", "password": "adam"}, timeout=PATIENCE)
        header = {"Authorization": f"Bearer {login.json()['access_token']}"}
        page = requests.get(f"{url}/onceonly/pipelines/orders", headers=header, timeout=PATIENCE)
        assert (page.status_code, "committed" in page.text) == (200, True), page.text[:2000]
