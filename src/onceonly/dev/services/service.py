"""What the two embedded services have in common: a port, a command, a moment when they are ready."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from onceonly.dev.services import machine
from onceonly.dev.services.daemon import Daemon, ServiceFailed


class Service(ABC):
    """One embedded service; launch and wait are apart, so that several can start at once."""

    name: str
    port_variable: str
    default_port: int
    seconds_to_start = 60.0

    def __init__(self, home: Path, port: int | None = None) -> None:
        """`port`: None takes the environment variable's, the last one or the default; 0 takes any free port."""
        self.home = home
        self.folder = home / "services" / self.name
        self.daemon = Daemon(self.folder)
        self._wanted = port
        self._launched = False

    @abstractmethod
    def command(self, port: int) -> Sequence[str]:
        """Prepare the folder; answer what to execute."""

    @abstractmethod
    def is_ready(self, port: int) -> bool:
        """Whether it serves requests; asked again and again."""

    @abstractmethod
    def address(self, port: int) -> str:
        """Where clients find it."""

    def environment(self) -> Mapping[str, str]:
        """What it needs beside the caller's environment."""
        return {}

    def launch(self) -> None:
        """Start it, unless it runs."""
        if running := self.daemon.running():
            return self._check_same_port(running.port)
        port = self._choose_port()
        self.daemon.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "port").write_text(str(port))
        self._launched = True
        self.daemon.start(self.command(port), port, self.environment())

    def wait(self) -> None:
        """Return when it is ready; when it will not be, raise, and stop it if this object has launched it."""
        try:
            self._wait()
        except BaseException:
            if self._launched:
                self.daemon.stop()
            raise
        self._launched = False

    def _wait(self) -> None:
        end = time.monotonic() + self.seconds_to_start
        while (running := self.daemon.running()) and time.monotonic() < end:
            if self.is_ready(running.port):
                return
            time.sleep(0.1)
        why = f"it was not ready after {self.seconds_to_start:.0f} s" if running else "its process has ended"
        log = f"The whole log: {self.daemon.log}"
        raise ServiceFailed(f"{self.name} did not start: {why}.", self.daemon.tail(), log)

    def _asked_port(self) -> int | None:
        variable = os.environ.get(self.port_variable)
        return self._wanted if self._wanted is not None or not variable else int(variable)

    def _choose_port(self) -> int:
        asked, last = self._asked_port(), self._last_port()
        if asked:
            return self._check_free(asked)
        usual = [last] if last else [] if asked == 0 else [self.default_port]
        return next(filter(machine.is_free, usual), None) or machine.free_port()

    def _last_port(self) -> int | None:
        """That of the last start, also after an orderly stop: addresses that were written down stay good."""
        with suppress(FileNotFoundError, ValueError):
            return int((self.folder / "port").read_text())
        last = self.daemon.last()
        return last.port if last else None

    def _check_free(self, port: int) -> int:
        if not machine.is_free(port):
            raise ServiceFailed(
                f"{self.name} cannot start on port {port}.",
                "Something else listens there.",
                f"Stop it, or choose another port: --port or {self.port_variable} (0: any free one).",
            )
        return port

    def _check_same_port(self, port: int) -> None:
        if self._asked_port() not in (None, 0, port):
            raise ServiceFailed(
                f"{self.name} cannot start on port {self._asked_port()}.",
                f"It runs on port {port} already.",
                "Stop it first, or leave the port away.",
            )
