"""The base of the two embedded services: a port, a command, and a check that they are ready."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from onceonly.dev.services import machine
from onceonly.dev.services.daemon import Daemon, ServiceFailed
from onceonly.waits import wait_for


class Service(ABC):
    """One embedded service. `launch` and `wait` are separate, so that several can start in parallel."""

    name: str
    port_variable: str
    default_port: int
    seconds_to_start = 60.0

    def __init__(self, home: Path, port: int | None = None) -> None:
        """Describe the service below `home`, without starting it.

        Args:
            port: None means that of the environment variable, the last one or the default; 0 means any free port.
        """
        self.home = home
        self.folder = home / "services" / self.name
        self.daemon = Daemon(self.folder)
        self._port = port
        self._launched = False

    @abstractmethod
    def command(self, port: int) -> Sequence[str]:
        """Prepare the folder; returns the command to execute."""

    @abstractmethod
    def is_ready(self, port: int) -> bool:
        """Return whether it serves requests; called repeatedly."""

    @abstractmethod
    def address(self, port: int) -> str:
        """Return the address for clients."""

    def environment(self) -> Mapping[str, str]:
        """Return the variables that it needs in addition to the caller's environment."""
        return {}

    def launch(self) -> None:
        """Start it, unless it is running."""
        running = self.daemon.running()
        if running:
            return self._check_same_port(running.port)
        port = self._choose_port()
        self.daemon.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "port").write_text(str(port))
        self._launched = True
        self.daemon.start(self.command(port), port, self.environment())

    def wait(self) -> None:
        """Wait until it is ready. If it does not become ready, raise, and stop it if this object has launched it."""
        try:
            self._await_readiness()
        except BaseException:
            if self._launched:
                self.daemon.stop()
            raise
        self._launched = False

    def _await_readiness(self) -> None:
        """Wait until it is ready. Raises ServiceFailed: it takes too long, or its process has exited."""
        end = time.monotonic() + self.seconds_to_start
        with wait_for(f"{self.name} to be ready; its log is {self.daemon.log}"):
            while (running := self.daemon.running()) and time.monotonic() < end:
                if self.is_ready(running.port):
                    return
                time.sleep(0.1)
        why = f"it was not ready after {self.seconds_to_start:.0f} s" if running else "its process has exited"
        log = f"Read the whole log: {self.daemon.log}"
        raise ServiceFailed(f"{self.name} did not start: {why}.", self.daemon.tail(), log, code="service-not-started")

    def _requested_port(self) -> int | None:
        """Return the port of the constructor, else that of the environment variable; None: neither is set."""
        if self._port is not None:
            return self._port
        variable = os.environ.get(self.port_variable)
        return int(variable) if variable else None

    def _choose_port(self) -> int:
        """Return the requested port, which must be free; else the last or the default one if it is free, else any."""
        requested, last = self._requested_port(), self._last_port()
        if requested:
            return self._check_free(requested)
        usual = last
        if not usual and requested is None:
            usual = self.default_port
        return machine.prefer_port(usual)

    def _last_port(self) -> int | None:
        """Return the port of the last start, also after a stop, so that recorded addresses stay valid."""
        with suppress(FileNotFoundError, ValueError):
            return int((self.folder / "port").read_text())
        last = self.daemon.last()
        return last.port if last else None

    def _check_free(self, port: int) -> int:
        if not machine.is_free(port):
            raise ServiceFailed(
                f"{self.name} cannot start on port {port}.",
                "Another process listens on it.",
                f"Stop that process, or choose another port: --port or {self.port_variable} (0: any free one).",
                code="port-in-use",
            )
        return port

    def _check_same_port(self, port: int) -> None:
        if self._requested_port() not in (None, 0, port):
            raise ServiceFailed(
                f"{self.name} cannot start on port {self._requested_port()}.",
                f"It is already running on port {port}.",
                "Stop it first (onceonly services down), or do not set the port.",
                code="port-in-use",
            )
