"""Debezium's embedded engine as a process beside a test, from PostgreSQL to Kafka or to a recording."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from patience import PATIENCE

from onceonly.dev.services import machine
from onceonly.spark import jars

HERE = Path(__file__).parent
JARS = Path(os.environ.get("ONCEONLY_TESTS_DEBEZIUM", HERE.parents[2] / ".jars" / "debezium"))
LOGGED = "wal_level=logical"  # what PostgreSQL needs
PREFIX = "shop"  # topics are called shop.public.TABLE


def fetch() -> Path:
    """The folder with Debezium's jars, about 30 MB from Maven Central the first time."""
    if not (JARS / "complete").exists():
        cache, pattern = JARS.parent / "cache", f"{JARS}/[artifact]-[revision].[ext]"
        ivy = [machine.java(), f"-Divy.default.ivy.user.dir={cache}", "-jar", str(jars.ivy_jar()), "-cache", str(cache)]
        what = ["-settings", str(jars.SETTINGS), "-ivy", str(HERE / "ivy.xml"), "-retrieve", pattern]
        subprocess.run([*ivy, *what], check=True, stdout=subprocess.DEVNULL)
        (JARS / "complete").touch()
    return JARS


def properties(folder: Path, url: str, **more: Any) -> dict[str, Any]:
    """Of a connector that reads all tables of the database. `more`: with '_' for '.'."""
    place = urlsplit(url)
    return {
        "name": "engine",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": folder / "offsets",
        "offset.flush.interval.ms": 0,
        "database.hostname": place.hostname,
        "database.port": place.port,
        "database.user": place.username,
        "database.dbname": place.path.strip("/"),
        "plugin.name": "pgoutput",
        "topic.prefix": PREFIX,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@contextmanager
def engine(folder: Path, settings: Mapping[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """A process that runs until the block ends; it is killed, as an engine may be."""
    file = folder / "engine.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    command = [machine.java(), "-Xmx256m", "-cp", f"{fetch()}/*", str(HERE / "Engine.java"), str(file)]
    with (folder / "engine.log").open("a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)
        assert process.stdout
        process.stdout.close()
