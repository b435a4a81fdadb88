"""A DAG run over a secure connection leaves its secret nowhere: state table, logs, XCom, argv, Spark's event log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from integration.programs.children import output
from integration.services.airflow_database import copy_database
from integration.services.secure_broker import PASSWORD, SECRET, USER, SecureBroker, secure_broker
from integration.services.stores import SERVERS
from patience import PATIENCE

from onceonly.dev.services.spark import SparkConnect
from onceonly.spark.conf import REDACTION
from onceonly.spark.small_batch import MAX_RECORDS

pytestmark = [pytest.mark.integration]
TOPIC = "secrets"
TRANSFORM = """
def numbers(batch):
    batch.collect()  # a plan so small that Spark Connect shows all of it
    return {"numbers": batch.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS n"), "out": batch.select("value")}
"""
DAG = """
import json
from datetime import datetime

from onceonly.airflow import checkpoint_dag
from onceonly import DeltaSink, KafkaSink, KafkaSource, Pipeline

secrets = Pipeline(
    name="secrets",
    source=KafkaSource("secrets", connection="kafka_secure"),
    transform="transforms:numbers",
    sinks=[
        DeltaSink("numbers", path="lake/numbers"),
        KafkaSink(name="out", topic="secrets-out", connection="kafka_secure"),
    ],
)
dag = checkpoint_dag(secrets, schedule=None, start_date=datetime(2024, 1, 1))
for task in dag.tasks:
    task.retries = 0

if __name__ == "__main__":
    run = dag.test()
    print("RESULT " + json.dumps({task.task_id: str(task.state) for task in run.get_task_instances()}))
"""


class LoggedConnect(SparkConnect):
    """A Spark Connect server as somebody else runs it: an event log, and no redaction of ours."""

    def _settings(self, port: int) -> dict[str, str | int]:
        usual = {key: value for key, value in super()._settings(port).items() if key not in REDACTION}
        return {**usual, **event_log(self.home)}


def event_log(folder: Path) -> dict[str, str]:
    (folder / "events").mkdir(exist_ok=True)
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"{folder}/events",
        "spark.eventLog.compress": "false",
    }


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with secure_broker(tmp_path_factory.mktemp("secure")) as running:
        admin = AdminClient({**settings(running), "log_level": 0})
        for created in admin.create_topics([NewTopic(TOPIC, 1, 1), NewTopic(f"{TOPIC}-out", 1, 1)]).values():
            created.result()
        producer = Producer({**settings(running), "log_level": 0})
        for number in range(MAX_RECORDS + 1):  # so many that Spark reads them
            producer.produce(TOPIC, str(number))
        assert producer.flush(PATIENCE) == 0
        yield running


def settings(secure: SecureBroker) -> dict[str, str]:
    return {
        "bootstrap.servers": f"127.0.0.1:{secure.sasl}",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(secure.authority.ca),
    }


def without_airflow() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "ONCEONLY"))}


@pytest.fixture
def environment(tmp_path: Path, secure: SecureBroker) -> dict[str, str]:
    """A project and an Airflow home of its own."""
    for folder in ("dags", "airflow"):
        (tmp_path / folder).mkdir()
    copy_database(tmp_path / "airflow")
    own = DAG.replace('name="secrets"', f'name="secrets_{uuid.uuid4().hex[:8]}"')  # as its state table is its own
    (tmp_path / "dags" / "case.py").write_text(own)
    (tmp_path / "transforms.py").write_text(TRANSFORM)
    return {
        **without_airflow(),
        "ONCEONLY_JARS": str(Path(__file__).parents[3] / ".jars"),
        "ONCEONLY_PROJECT": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])),
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "AIRFLOW_CONN_KAFKA_SECURE": json.dumps({"conn_type": "kafka", "extra": settings(secure)}),
        "AIRFLOW_CONN_SPARK": spark_connection("local[2]", tmp_path),
        "SPARK_CONNECT_MODE_ENABLED": "1",  # left behind by a session: spark-submit goes where it is told
    }


def spark_connection(host: str, folder: Path, token: str | None = None) -> str:
    conf = {**event_log(folder), "spark.hadoop.fs.s3a.secret.key": SECRET}
    return json.dumps({"conn_type": "generic", "host": host, "password": token, "extra": {"conf": conf}})


def run(environment: dict[str, str]) -> tuple[dict[str, str], str]:
    """The tasks' states, and all that was printed; no process showed the secret in its arguments meanwhile."""
    ended, seen = Event(), set[str]()

    def watch() -> None:
        while not ended.wait(0.5):
            seen.update(command for command, ours in commands() if ours or environment["ONCEONLY_PROJECT"] in command)

    watcher = Thread(target=watch)
    watcher.start()
    case = f"{environment['ONCEONLY_PROJECT']}/dags/case.py"
    child = subprocess.Popen(
        [sys.executable, case],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed = output(child)
    finally:
        ended.set()
        watcher.join()
    results = [line for line in printed.splitlines() if line.startswith("RESULT ")]
    assert results, printed[-5000:]
    assert any(case in command for command in seen)
    assert not [command for command in seen if SECRET in command]
    return json.loads(results[-1].removeprefix("RESULT ")), printed


def commands() -> Iterator[tuple[str, bool]]:
    """Every process's, and whether this one has started it: other tests run beside us, with secrets of their own."""
    ours = {process.pid for process in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter(["cmdline"]):
        yield " ".join(process.info["cmdline"] or ()), process.pid in ours


def assert_no_secret(folder: Path, printed: str) -> None:
    assert SECRET not in printed
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]
    (rows,) = (folder / ".onceonly" / "state" / "_pipelines").iterdir()
    state = DeltaTable(str(rows)).to_pyarrow_table()  # compressed in its files
    assert "kafka_secure" in str(state.to_pylist())
    assert SECRET not in str(state.to_pylist())


@pytest.mark.heavy
def test_spark_submit_leaves_no_secret(environment: dict[str, str], tmp_path: Path) -> None:
    states, printed = run(environment)
    assert (states["plan"], states["stage"], states["commit"]) == ("success",) * 3, printed[-5000:]
    assert "records in Kafka" in "".join(
        file.read_text() for file in (tmp_path / "events").rglob("*") if file.is_file()
    )
    assert_no_secret(tmp_path, printed)


@pytest.mark.heavy
def test_a_connect_server_of_somebody_else_is_shown_no_secret(environment: dict[str, str], tmp_path: Path) -> None:
    server = LoggedConnect(tmp_path, 0)
    server.launch()
    try:
        server.wait()
        started = server.daemon.running()
        assert started is not None
        remote = spark_connection(server.address(started.port), tmp_path, server.token())
        states, printed = run({**environment, "AIRFLOW_CONN_SPARK": remote})
    finally:
        server.daemon.stop()
    assert (states["plan"], states["stage"], states["commit"]) == ("success",) * 3, printed[-5000:]
    events = "".join(file.read_text() for file in (tmp_path / "events").rglob("*") if file.is_file())
    assert "kafka.sasl.jaas.config" in events  # the plan is there
    assert_no_secret(tmp_path, printed)


def by_connection(own: dict[str, str]) -> tuple[str, dict[str, str]]:
    """What is secret of a store's environment, and how a task finds it in an Airflow connection."""
    if "AWS_ENDPOINT_URL" in own:
        extra = {"endpoint_url": own["AWS_ENDPOINT_URL"], "region_name": own["AWS_REGION"]}
        login, secret = own["AWS_ACCESS_KEY_ID"], own["AWS_SECRET_ACCESS_KEY"]
        kind, named, rest = "aws", "ONCEONLY_AWS_CONNECTION", {}
    else:
        extra, login, secret = {}, own.pop("AZURE_STORAGE_ACCOUNT_NAME"), own.pop("AZURE_STORAGE_ACCOUNT_KEY")
        kind, named, rest = "wasb", "ONCEONLY_AZURE_CONNECTION", own
    made = {"conn_type": kind, "login": login, "password": secret, "extra": extra}
    return secret, {**rest, "AIRFLOW_CONN_LAKE": json.dumps(made), named: "lake"}


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["s3", "azure"])  # an emulator of Google asks for no credentials
def test_a_store_by_an_airflow_connection_leaves_no_secret(
    environment: dict[str, str], tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state table and a table are there; few records, which need no jar of Spark for it."""
    module = SERVERS[kind]
    if module.BINARY is None:
        pytest.skip(module.MISSING)
    with module.server(*[f"{SECRET}/2013+"][: kind == "s3"]) as server:
        case, target = tmp_path / "dags" / "case.py", server.uri("numbers")
        for old, new in {"lake/numbers": target, 're"),\n    t': 're", max_records=100),\n    t'}.items():
            case.write_text(case.read_text().replace(old, new))
        secret, found = by_connection(dict(server.environment))
        env = {**environment, **found, "ONCEONLY_STATE": server.uri("state")}
        command = [str(Path(sys.executable).with_name("onceonly")), "state", "init"]
        subprocess.run(command, check=True, env=env, timeout=PATIENCE)
        states, printed = run(env)
        assert (states["plan"], states["stage"], states["commit"]) == ("success",) * 3, printed[-5000:]
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        assert DeltaTable(target).to_pyarrow_table().num_rows == 100
        files = [file for root in (tmp_path, server.folder) for file in root.rglob("*") if file.is_file()]
        for shown in {secret, SECRET}:
            assert not [file for file in files if shown.encode() in file.read_bytes()]
            assert shown not in printed


def test_a_wrong_password_fails_the_plan_and_is_not_shown(environment: dict[str, str], secure: SecureBroker) -> None:
    extra = {**settings(secure), "sasl.password": f"{SECRET}-wrong"}
    wrong = json.dumps({"conn_type": "kafka", "extra": extra})
    states, printed = run({**environment, "AIRFLOW_CONN_KAFKA_SECURE": wrong})
    assert states["plan"] == "failed"
    assert "refuses the credentials" in printed
    assert SECRET not in printed
