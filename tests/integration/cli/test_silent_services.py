"""Each command says within three seconds what it waits for, where that does not answer: services, stores, locks."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from patience import PATIENCE

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.integration
COMMAND = str(Path(sys.executable).with_name("onceonly"))
PIPELINES = """
from onceonly import DeltaSink, KafkaSource, Pipeline

events = Pipeline(
    name="events", source=KafkaSource("events"), transform="shapes:shape",
    sinks=[DeltaSink("lake", path="lake/events")],
)
new = Pipeline(
    name="new", source=KafkaSource("events", format="json", schema="schemas/new.ddl"), transform="shapes:shape",
    sinks=[DeltaSink("lake", path="lake/new")],
)
named = Pipeline(
    name="named", source=KafkaSource("events", connection="not_there"), transform="shapes:shape",
    sinks=[DeltaSink("lake", path="lake/named")],
)
"""
MAX_SECONDS = 3.5  # from the begin of a wait to its line: two until it counts, one for a busy machine
LINE = re.compile(r"^… (?P<text>.*), since (?P<clock>\d\d:\d\d:\d\d) UTC$")


@dataclass
class Place:
    """A project, and a server that takes connections and never answers."""

    folder: Path
    silent: str  # host:port
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "ONCEONLY", "AWS"))
        }
        self.env = clean | {
            "ONCEONLY_PROJECT": str(self.folder),
            "ONCEONLY_HOME": str(self.folder / "home"),
            "ONCEONLY_JARS": os.environ.get("ONCEONLY_JARS", str(ROOT / ".jars")),
            "ONCEONLY_KAFKA_BOOTSTRAP": self.silent,
        }
        (self.folder / "schemas").mkdir()
        (self.folder / "pipelines.py").write_text(PIPELINES)
        (self.folder / "slow.py").write_text(f"import time; time.sleep(6)\n{PIPELINES}")
        (self.folder / "shapes.py").write_text("def shape(batch):\n    return batch\n")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield Place(tmp_path, f"127.0.0.1:{server.getsockname()[1]}")


@contextmanager
def held(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def await_line(place: Place, arguments: str, text: str, **env: str) -> None:
    """Run a command until it has said that it waits for this, and end it; assert that it said so soon enough."""
    process = subprocess.Popen(
        [COMMAND, *arguments.split()], cwd=place.folder, env=place.env | env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    timer = threading.Timer(PATIENCE, process.kill)
    timer.start()
    lines: list[str] = []
    try:
        for line in process.stderr or ():
            lines.append(line.rstrip("\n"))
            match = LINE.match(lines[-1])
            if match and text in match["text"]:
                assert _seconds_since(match["clock"]) <= MAX_SECONDS, lines
                return
        raise AssertionError(f"exit code {process.wait()}, {lines}, {process.stdout and process.stdout.read()}")
    finally:
        timer.cancel()
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _seconds_since(clock: str) -> float:
    now = datetime.now(UTC)
    since = datetime.combine(now.date(), datetime.strptime(clock, "%H:%M:%S").time(), UTC)
    return (now - since).total_seconds() % 86_400


STORE = {
    "ONCEONLY_STATE": "s3://bucket/state",
    "AWS_ENDPOINT_URL": "http://{silent}",
    "AWS_ALLOW_HTTP": "true",
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "b",
    "AWS_REGION": "eu-west-1",
}
FILE = "pipelines.py:events"
SILENT: list[tuple[str, str, dict[str, str]]] = [
    (f"check {FILE}", "the Kafka broker at {silent}, asked about topic 'events'", {}),
    (f"run {FILE}", "the Kafka broker at {silent}, asked about topic 'events'", {}),
    (f"check {FILE}", "the Spark Connect server at sc://{silent}", {"SPARK_REMOTE": "sc://{silent}"}),
    ("check slow.py:events", "slow.py, which is imported", {}),
    ("status", "s3://bucket/state", STORE),
    ("status events", "s3://bucket/state", STORE),
    ("describe events 1", "s3://bucket/state", STORE),
    ("lineage events", "s3://bucket/state", STORE),
    ("metrics", "s3://bucket/state", STORE),
    ("recover", "s3://bucket/state", STORE),
    ("sweep", "s3://bucket/state", STORE),
    ("approve events 1 --reason r --seen 1", "s3://bucket/state", STORE),
    ("abort events 1 --reason r --seen 1", "s3://bucket/state", STORE),
    ("resolve events 1 --give-up lake --reason r --seen 1", "s3://bucket/state", STORE),
    ("accept-loss events lake --reason r --seen 1", "s3://bucket/state", STORE),
    ("rewind events 1 --reason r --seen 1", "s3://bucket/state", STORE),
    ("skip events --interval 2026-01-01 2026-01-02 --reason r --seen 1", "s3://bucket/state", STORE),
    ("state init", "s3://bucket/state", STORE),
    ("state relocate", "s3://bucket/state", STORE),
    ("state fork", "s3://bucket/state", STORE),
    ("infer pipelines.py:new", "the Kafka broker at {silent}, asked about topic 'events'", {}),
]


@pytest.mark.parametrize(("arguments", "text", "env"), SILENT)
def test_silent_service_is_named(place: Place, arguments: str, text: str, env: dict[str, str]) -> None:
    filled = {name: value.format(silent=place.silent) for name, value in env.items()}
    await_line(place, arguments, text.format(silent=place.silent), **filled)


@pytest.mark.parametrize("json", ["", " --json"])
@pytest.mark.parametrize(
    ("arguments", "lock", "text"),
    [
        ("jars fetch", "jars/cache/fetching.lock", "another process, which has locked"),
        ("services up --port 0", "home/services/lock", "another process, which starts or stops services"),
        ("services down", "home/services/lock", "another process, which starts or stops services"),
    ],
)
def test_held_lock_is_named(place: Place, arguments: str, lock: str, text: str, json: str) -> None:
    with held(place.folder / lock):
        await_line(place, arguments + json, text, ONCEONLY_JARS=str(place.folder / "jars"))


def test_classes_that_another_process_prepares(place: Place) -> None:
    jars = place.folder / "jars"
    jars.mkdir()
    (jars / "spark").symlink_to(Path(os.environ.get("ONCEONLY_JARS", str(ROOT / ".jars"))) / "spark")
    with held(jars / "preparing.lock"):
        await_line(place, "jars prepare", "another process, which has locked", ONCEONLY_JARS=str(jars))


def test_maven_repository_is_named(place: Place) -> None:
    settings = place.folder / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="slow"/><resolvers>'
        f'<ibiblio name="slow" m2compatible="true" root="http://{place.silent}/"/></resolvers></ivysettings>'
    )
    text = "jars from the Maven repository of ivysettings.xml: broker"
    await_line(place, f"jars fetch broker --settings {settings}", text, ONCEONLY_JARS=str(place.folder / "jars"))


def test_lookup_of_connections_is_named(place: Place) -> None:
    """What provides the entry point takes seconds, as Airflow's own does where its database is slow."""
    packages = place.folder / "packages"
    metadata = packages / "slowlookup-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: slowlookup\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[onceonly.connections]\nslow = slowlookup:find\n")
    (packages / "slowlookup.py").write_text(
        "import time\n\ndef find(conn_id):\n    time.sleep(6)\n    return None, ''\n"
    )
    path = os.pathsep.join([str(packages), place.env.get("PYTHONPATH", "")])
    await_line(place, "check pipelines.py:named", "Airflow, asked for the connection", PYTHONPATH=path)


def test_broker_that_stops_in_the_middle(place: Place, broker: str) -> None:
    """A proxy takes the connection, passes some bytes on, and then nothing more."""
    with stalling(broker, after_bytes=60) as address:
        await_line(place, f"check {FILE}", f"the Kafka broker at {address}", ONCEONLY_KAFKA_BOOTSTRAP=address)


@contextmanager
def stalling(target: str, after_bytes: int) -> Iterator[str]:
    host, _, port = target.split(",")[0].rpartition(":")
    server = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def serve(accept: Callable[[], tuple[socket.socket, object]]) -> None:
        while True:
            try:
                client, _ = accept()
            except OSError:
                return
            upstream = socket.create_connection((host, int(port)))
            connections.extend((client, upstream))
            upstream.sendall(client.recv(after_bytes))

    threading.Thread(target=serve, args=(server.accept,), daemon=True).start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.close()
        for connection in connections:
            connection.close()
