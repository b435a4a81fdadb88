"""A broker behind a line that can be cut, at a request or at the answer to it: for tests and chaos."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from onceonly.dev.services import machine
from onceonly.dev.services.kafka import KafkaBroker

PRODUCE, FETCH, API_VERSIONS, INIT_PRODUCER_ID, END_TXN = 0, 1, 18, 22, 26  # api keys


@dataclass
class Cut:
    """The line breaks at these requests (None: of every kind), so many times of each kind.

    Args:
        at: 'request': it does not arrive; 'answer': it is carried out and nobody hears of it.
        instead: called in that moment.
    """

    apis: set[int] | None
    at: str
    times: int = 1
    instead: Callable[[], object] = lambda: None
    cuts: list[int] = field(default_factory=list)  # by api key: those that it made
    lock: Lock = field(default_factory=Lock, repr=False)

    def takes(self, api: int, at: str) -> bool:
        with self.lock:
            is_due = at == self.at and (self.apis is None or api in self.apis) and self.cuts.count(api) < self.times
            if is_due:
                self.cuts.append(api)
            return is_due


class Proxy:
    """Passes whole frames on, in both directions, until it is told otherwise."""

    def __init__(self) -> None:
        self._server = socket.create_server((machine.LOCALHOST, 0))
        self.port: int = self._server.getsockname()[1]
        self.target = 0
        self._cut = Cut(set(), "request")
        self._lines: list[_Line] = []
        self._thread = Thread(target=self._accept)
        self._thread.start()

    @contextmanager
    def cut(self, apis: set[int] | None, at: str, **more: Any) -> Iterator[Cut]:
        """Cut the line at these requests or answers while the block runs."""
        self._cut = cut = Cut(apis, at, **more)
        try:
            yield cut
        finally:
            self._cut = Cut(set(), "request")

    def takes(self, api: int, at: str) -> bool:
        cut = self._cut
        is_due = cut.takes(api, at)
        if is_due:
            cut.instead()
        return is_due

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.close()
        for line in self._lines:
            line.end()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection((machine.LOCALHOST, self.target))
            except OSError:  # it is dead
                client.close()
                continue
            self._lines.append(_Line(self, client, broker))


class _Line:
    """One connection: a thread for each direction."""

    def __init__(self, proxy: Proxy, client: socket.socket, broker: socket.socket) -> None:
        self._proxy, self._client, self._broker = proxy, client, broker
        self._unheard: set[bytes] = set()  # correlation ids
        self._asked: dict[bytes, int] = {}
        self._threads = [Thread(target=self._requests), Thread(target=self._answers)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._break()
        for thread in self._threads:
            thread.join()
        self._client.close()
        self._broker.close()

    def _requests(self) -> None:
        for frame in _frames(self._client):
            api, correlation = int.from_bytes(frame[4:6], "big"), frame[8:12]
            if self._proxy.takes(api, "request"):
                break
            self._asked[correlation] = api
            with suppress(OSError):
                self._broker.sendall(frame)
        self._break()

    def _answers(self) -> None:
        for frame in _frames(self._broker):
            if self._proxy.takes(self._asked.pop(frame[4:8]), "answer"):
                break
            with suppress(OSError):
                self._client.sendall(frame)
        self._break()

    def _break(self) -> None:
        for end in (self._client, self._broker):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _frames(source: socket.socket) -> Iterator[bytes]:
    """Whole messages, with the four bytes of their size, until the connection ends."""
    with suppress(OSError), source.makefile("rb") as stream:
        while len(size := stream.read(4)) == 4:
            yield size + stream.read(int.from_bytes(size, "big"))


class FarBroker(KafkaBroker):
    """A broker of one's own: on its port directly, and at `far` through a proxy."""

    def __init__(self, home: Path, proxy: Proxy) -> None:
        super().__init__(home, machine.free_port())
        self._proxy, self._behind = proxy, machine.free_port()
        proxy.target = self._behind

    @property
    def near(self) -> str:
        return self.address(self._requested_port() or 0)

    @property
    def far(self) -> str:
        return self.address(self._proxy.port)

    def properties(self, port: int) -> str:
        lines, ports = [], {"listeners": self._behind, "advertised.listeners": self._proxy.port}
        for line in super().properties(port).splitlines():
            key = line.split("=")[0]
            if key in ports:
                line += f",FAR://{machine.LOCALHOST}:{ports[key]}"
            lines.append(line)
        protocols = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,FAR:PLAINTEXT"
        lines += [f"listener.security.protocol.map={protocols}", "inter.broker.listener.name=PLAINTEXT", ""]
        return "\n".join(lines)

    def start(self) -> None:
        self.launch()
        self.wait()

    def kill(self) -> None:
        """SIGKILL, and returns when it is gone."""
        self.daemon.kill()
