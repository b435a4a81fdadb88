"""Make the archive of a version's formats: `python tests/formats/make.py VERSION`, with tests/ and src/ on the path.

Run it once per version that changes a format, and never again for that version: the archive is what that version wrote.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile

from confluent_kafka import Producer
from formats.frozen import ARCHIVES, HOME, NUMBERS, PARTITIONS, POINTS, SOURCE, TRANSFORM, environment
from integration.programs.children import output, start, without_spark
from integration.readers.kafka_reader import create_topic
from patience import PATIENCE

from onceonly.dev.services import Services
from onceonly.dev.services.spark import TOKEN
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable

KILLED = -9
LEFT_OUT = ("services/spark", "services/kafka/log", "services/lock", "services.json", "__pycache__")


def produce(bootstrap: str) -> None:
    create_topic(bootstrap, SOURCE, PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in NUMBERS:
        producer.produce(SOURCE, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(PATIENCE) == 0


def leave_open(name: str, point: str, bootstrap: str, spark: str) -> None:
    create_topic(bootstrap, f"out-{name}", PARTITIONS)
    env = {**without_spark(os.environ), **environment(bootstrap)}
    child = start(str(ARCHIVES / "run.py"), spark, point, name, env=env)
    printed = output(child, 4 * PATIENCE)
    assert child.returncode == KILLED, f"'{point}' was not reached: {printed}"
    print(f"{name}: killed {point}", flush=True)


def belongs_to_the_archive(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if any(part in member.name for part in LEFT_OUT) else member


def main() -> None:
    archive = ARCHIVES / f"{sys.argv[1]}.tar.xz"
    (HOME / "project").mkdir(parents=True)
    (HOME / "project" / "spreading.py").write_text(TRANSFORM)
    services = Services(HOME, port=0, spark_port=0)
    endpoints = services.up(spark=True)
    os.environ[TOKEN] = endpoints.spark_token or ""
    try:
        StateTable.make(Settings.from_env(environment(endpoints.bootstrap)).state)
        produce(endpoints.bootstrap)
        for name, point in POINTS.items():
            leave_open(name, point, endpoints.bootstrap, endpoints.spark_remote or "")
    finally:
        services.down()
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(HOME, arcname=".", filter=belongs_to_the_archive)
    shutil.rmtree(HOME)
    print(f"{archive}: {archive.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
