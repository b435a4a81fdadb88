"""The embedded services, from the point of view of someone who starts, kills and stops them."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from codes import raises
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from integration.readers.kafka_reader import until
from patience import PATIENCE
from pyspark.sql import SparkSession

from onceonly.dev.services import ServiceFailed, Services, ServiceState
from onceonly.dev.services.daemon import TOKEN

pytestmark = pytest.mark.integration


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose services are ended, whatever the test did."""
    yield tmp_path / "home with a space"
    Services(tmp_path / "home with a space").down()


def produce(bootstrap: str, *values: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("numbers", 1)])["numbers"].result(PATIENCE)
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce("numbers", value)
    assert producer.flush(PATIENCE) == 0


def consume(bootstrap: str, count: int) -> list[str]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "test", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe(["numbers"])
    values = [message.value().decode() for message in consumer.consume(count, timeout=PATIENCE)]
    consumer.close()
    return values


def pid_of(services: Services, name: str) -> int:
    return next(status.pid or 0 for status in services.status() if status.name == name)


def states(services: Services) -> dict[str, str]:
    return {status.name: status.state for status in services.status()}


def processes_of(home: Path) -> list[int]:
    """Every living process that names this home in its command line."""
    listed = psutil.process_iter(["cmdline", "status"])
    return [p.pid for p in listed if p.info["status"] != "zombie" and str(home) in " ".join(p.info["cmdline"] or [])]


def test_up_twice_is_one_broker_and_down_leaves_nothing(home: Path) -> None:
    services = Services(home, port=0)
    bootstrap = services.up().bootstrap
    produce(bootstrap, "1", "2")
    pid = pid_of(services, "kafka")

    assert consume(bootstrap, 2) == ["1", "2"]
    assert services.up().bootstrap == bootstrap
    assert Services(home).up().bootstrap == bootstrap
    assert pid_of(Services(home), "kafka") == pid
    assert json.loads((home / "services.json").read_text()) == {"kafka": bootstrap, "spark": None}
    with raises(ServiceFailed, "port-in-use"):
        Services(home, port=1).up()

    services.down()
    assert processes_of(home) == []
    assert not (home / "services.json").exists()
    assert states(services) == {"kafka": ServiceState.STOPPED, "spark": ServiceState.STOPPED}
    services.down()


@pytest.mark.heavy
def test_two_processes_at_once_start_one_broker(home: Path) -> None:
    code = (
        f"import pathlib, onceonly.dev.services as s; print(s.Services(pathlib.Path({str(home)!r}), 0).up().bootstrap)"
    )
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    answers = [process.communicate(timeout=PATIENCE)[0] for process in both]

    assert answers[0] == answers[1] != b""
    assert len(processes_of(home)) == 1


def test_a_killed_broker_comes_back_with_its_data(home: Path) -> None:
    services = Services(home, port=0)
    produce(services.up().bootstrap, "1", "2", "3")
    os.kill(pid_of(services, "kafka"), signal.SIGKILL)
    until(lambda: states(services)["kafka"] == ServiceState.DIED, what="the broker is known to have died")

    assert consume(services.up().bootstrap, 3) == ["1", "2", "3"]


def test_a_recycled_pid_is_not_killed(home: Path) -> None:
    """The record names a living process that is not ours: `down` spares it and `up` does not take it for a broker."""
    innocent = subprocess.Popen(["sleep", "60"])
    try:
        folder = home / "services" / "kafka"
        folder.mkdir(parents=True)
        record = {"token": "of an earlier start", "port": 1, "pid": innocent.pid}
        (folder / "started.json").write_text(json.dumps(record))

        assert states(Services(home))["kafka"] == ServiceState.DIED
        Services(home).down()
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_children_of_a_killed_leader_are_found(home: Path) -> None:
    """They carry the token, although the pid on record is gone."""
    orphan = subprocess.Popen(["sleep", "60"], env={**os.environ, TOKEN: "this start"}, start_new_session=True)
    until(lambda: psutil.Process(orphan.pid).environ().get(TOKEN), what="the end of its exec")
    folder = home / "services" / "spark"
    folder.mkdir(parents=True)
    (folder / "started.json").write_text(json.dumps({"token": "this start", "port": 1}))

    Services(home).down()
    assert not psutil.pid_exists(orphan.pid) or orphan.poll() is not None
    orphan.wait()


@pytest.mark.parametrize("spark", [False, True])
def test_a_port_in_use_is_reported_and_nothing_stays(home: Path, spark: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with raises(ServiceFailed, "port-in-use") as refused:
            Services(home, port=port, spark_port=0).up(spark)
        assert str(port) in refused.value.what and "ONCEONLY_KAFKA_PORT" in refused.value.todo

    assert processes_of(home) == []


@pytest.mark.heavy
def test_the_port_stays_where_it_is_free(home: Path) -> None:
    """Over an orderly stop, too; where something else has taken it meanwhile, another one is found."""
    first = Services(home, port=0).up().bootstrap
    Services(home).down()
    assert Services(home).up().bootstrap == first
    Services(home).down()
    with socket.create_server(("127.0.0.1", int(first.rpartition(":")[2]))):
        assert Services(home).up().bootstrap != first


def test_without_jars_it_says_what_to_do(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ONCEONLY_JARS", str(tmp_path / "nowhere"))
    with raises(ServiceFailed, "jar-missing") as refused:
        Services(home, port=0).up()
    assert "make setup" in refused.value.todo


@pytest.mark.heavy
def test_a_broker_that_cannot_start_shows_its_log(home: Path) -> None:
    services = Services(home, port=0)
    services.up()
    services.down()
    meta = home / "services" / "kafka" / "data" / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=1", "node.id=7"))

    with raises(ServiceFailed, "service-not-started") as refused:
        services.up()
    assert "node" in refused.value.why
    assert processes_of(home) == []


def test_spark_takes_this_python_and_writes_delta(spark: SparkSession, tmp_path: Path) -> None:
    def interpreter(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from (pa.RecordBatch.from_pydict({"python": [sys.executable]}) for _ in batches)

    assert spark.range(1).mapInArrow(interpreter, "python string").first()["python"] == sys.executable
    spark.range(10).write.format("delta").save(str(tmp_path / "table"))
    assert spark.read.format("delta").load(str(tmp_path / "table")).count() == 10
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_spark_and_broker_end_together(home: Path) -> None:
    services = Services(home, port=0, spark_port=0)
    found = services.up(spark=True)
    assert json.loads((home / "services.json").read_text()) == {"kafka": found.bootstrap, "spark": found.spark_remote}
    assert len(processes_of(home)) == 2

    services.down()
    assert processes_of(home) == []
