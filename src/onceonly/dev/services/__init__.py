"""A Kafka broker and a Spark Connect server on this machine, for users without a cluster.

    services = Services(Path(".onceonly"))
    services.up().bootstrap      # "127.0.0.1:19092", after about three seconds
    services.down()              # leaves no process

Both are idempotent, and safe for several processes at once. All files are below `<home>/services`. While they run,
`<home>/services.json` has their addresses for other processes.
"""

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from onceonly.dev.services.daemon import ServiceFailed
from onceonly.dev.services.kafka import KafkaBroker
from onceonly.dev.services.service import Service
from onceonly.dev.services.spark import SparkConnect
from onceonly.storage.durability import require_writable
from onceonly.waits import wait_for

__all__ = ["Endpoints", "ServiceFailed", "ServiceState", "ServiceStatus", "Services"]


class ServiceState(StrEnum):
    """The state of a service."""

    RUNNING = "running"
    STOPPED = "stopped"  # never started, or stopped by `down`
    DIED = "died"  # ended otherwise; the next `up` starts it again


@dataclass(frozen=True)
class Endpoints:
    """Addresses for clients; those of Spark are None unless its server runs."""

    bootstrap: str
    spark_remote: str | None = None
    spark_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class ServiceStatus:
    """One line of `onceonly services status`."""

    name: str
    state: ServiceState
    pid: int | None
    address: str | None
    folder: Path


class Services:
    """The embedded services of one home folder."""

    def __init__(self, home: Path, port: int | None = None, spark_port: int | None = None) -> None:
        """Describe the services below `home`, without starting them.

        Args:
            port, spark_port: None means that of the environment or the default, 0 means any free one.
        """
        self.home = home.resolve()
        self._kafka = KafkaBroker(self.home, port)
        self._spark = SparkConnect(self.home, spark_port)

    def up(self, spark: bool = False) -> Endpoints:
        """Start the services that do not run, wait until they are ready, and write `<home>/services.json`.

        Raises:
            ServiceFailed: a port is in use, Java or jars are missing, or a service exited; with the end of its log.
        """
        services = [self._spark, self._kafka] if spark else [self._kafka]
        with self._hold_lock(), _all_or_none(services):
            for service in services:
                service.launch()
            for service in services:
                service.wait()
            return self._write_endpoints()

    def status(self) -> list[ServiceStatus]:
        """Return the status of every service, running or not."""
        return [_read_status(self._kafka), _read_status(self._spark)]

    def down(self) -> None:
        """Stop all services, and keep their data."""
        with self._hold_lock():
            self._endpoints_file.unlink(missing_ok=True)
            self._kafka.daemon.stop()
            self._spark.daemon.stop()

    @property
    def _endpoints_file(self) -> Path:
        return self.home / "services.json"

    def _write_endpoints(self) -> Endpoints:
        kafka, spark = _read_status(self._kafka).address, _read_status(self._spark).address
        new_file = self._endpoints_file.with_suffix(".new")
        new_file.write_text(json.dumps({"kafka": kafka, "spark": spark}) + "\n")
        new_file.replace(self._endpoints_file)
        return Endpoints(kafka or "", spark, self._spark.token() if spark else None)

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Hold the lock that one process at a time has. Raises ServiceFailed: its folder cannot be created."""
        folder = self.home / "services"
        require_writable(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ServiceFailed(
                f"{folder} cannot be created.",
                f"{error}.",
                "Set ONCEONLY_HOME to another folder. Nothing was started.",
                code="folder-not-writable",
            ) from error
        with (folder / "lock").open("w") as lock:
            with wait_for(f"another process, which starts or stops services in {folder}"):
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@contextmanager
def _all_or_none(services: Sequence[Service]) -> Iterator[None]:
    """Stop the services that were started in the block if one of them fails to start."""
    new_services = [service for service in services if not service.daemon.running()]
    try:
        yield
    except BaseException:
        for service in new_services:
            service.daemon.stop()
        raise


def _read_status(service: Service) -> ServiceStatus:
    running = service.daemon.running()
    if running:
        address = service.address(running.port)
        return ServiceStatus(service.name, ServiceState.RUNNING, running.pid, address, service.folder)
    state = ServiceState.DIED if service.daemon.last() else ServiceState.STOPPED
    return ServiceStatus(service.name, state, None, None, service.folder)
