"""Up, status, down: safe to repeat, and safe for several processes at once."""

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from onceonly.dev.services.kafka import KafkaBroker
from onceonly.dev.services.service import Service
from onceonly.dev.services.spark import SparkConnect
from onceonly.filesystems.durability import require_writable


class ServiceState(StrEnum):
    """What has become of a service."""

    RUNNING = "running"
    STOPPED = "stopped"  # never started, or ended by `down`
    DIED = "died"  # ended by something else; the next `up` starts it again


@dataclass(frozen=True)
class Endpoints:
    """Where clients connect; what is Spark's is None unless the server runs."""

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
        """Ports: None is the default or what the environment says, 0 any free one."""
        self.home = home.resolve()
        self._kafka = KafkaBroker(self.home, port)
        self._spark = SparkConnect(self.home, spark_port)

    def up(self, spark: bool = False) -> Endpoints:
        """Start what does not run, wait until it serves, write `<home>/services.json`.

        Raises:
            ServiceFailed: a port is taken, something is missing, or a service ended; with the end of its log.
        """
        services = [self._spark, self._kafka] if spark else [self._kafka]
        with self._alone(), _all_or_none(services):
            for service in services:
                service.launch()
            for service in services:
                service.wait()
            return self._publish()

    def status(self) -> list[ServiceStatus]:
        """Every service, also those that do not run."""
        return [_status(service) for service in self._all()]

    def down(self) -> None:
        """Stop all, keep their data."""
        with self._alone():
            self._file.unlink(missing_ok=True)
            for service in self._all():
                service.daemon.stop()

    @property
    def _file(self) -> Path:
        return self.home / "services.json"

    def _all(self) -> list[Service]:
        return [self._kafka, self._spark]

    def _publish(self) -> Endpoints:
        kafka, spark = (_status(service).address for service in self._all())
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"kafka": kafka, "spark": spark}) + "\n")
        new.replace(self._file)
        return Endpoints(kafka or "", spark, self._spark.token() if spark else None)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        folder = self.home / "services"
        require_writable(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@contextmanager
def _all_or_none(services: Sequence[Service]) -> Iterator[None]:
    """Where one fails to start, those that were started beside it do not stay."""
    new = [service for service in services if not service.daemon.running()]
    try:
        yield
    except BaseException:
        for service in new:
            service.daemon.stop()
        raise


def _status(service: Service) -> ServiceStatus:
    running = service.daemon.running()
    state = ServiceState.RUNNING if running else ServiceState.DIED if service.daemon.last() else ServiceState.STOPPED
    address = service.address(running.port) if running else None
    return ServiceStatus(service.name, state, running.pid if running else None, address, service.folder)
