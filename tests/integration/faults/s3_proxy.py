"""Between a client and an object store: counts requests, makes them slow, and loses or spoils answers.

A process of its own: delta-rs holds this interpreter's lock while it waits for some answers.
"""

from __future__ import annotations

import http.client
import multiprocessing
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from patience import PATIENCE

ENTRY = re.compile(r"_delta_log/\d{20}\.json$")
ERROR = b'<?xml version="1.0"?><Error><Code>%s</Code><Message>said the proxy</Message></Error>'
Answer = tuple[int, dict[str, str], bytes]  # status, headers, body
HOP = {"connection", "expect", "transfer-encoding"}
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(
    ["integration.faults.s3_proxy", "integration.victims.mortal_s3", "integration.projects.s3_writers"]
)


class Fault(Enum):
    LOST_BEFORE = "the connection breaks, and the server has not seen the request"
    LOST = "the connection breaks after the server has done it"
    BUSY = "503, and the server has not seen the request"
    BUSY_AFTER = "503 after the server has done it"
    HELD = "the server has done it, and the answer does not come"
    BROKEN = "the server has done it, and the connection breaks in the middle of the answer"
    DENIED = "403"
    NO_SERVER = "404, as of a load balancer whose server is down"
    UNKNOWN = "501 to a condition, as of a server that does not know it"
    UNCONDITIONAL = "as of a server that does not know conditions"


@dataclass(frozen=True)
class Request:
    method: str
    path: str  # decoded: /bucket/key
    conditional: bool
    query: str = ""

    @property
    def is_commit(self) -> bool:
        """Whether it makes an entry of the log of a table that is not staged."""
        return self.changes and self.conditional and bool(ENTRY.search(self.path)) and "/staged-" not in self.path

    @property
    def changes(self) -> bool:
        """Whether the server has something else after it."""
        return self.method in ("PUT", "POST", "DELETE")


class Rule:
    """What happens to a request; asked once for each, one after the other, in the proxy's process."""

    def fault(self, request: Request) -> Fault | None:
        return None

    def done(self, request: Request) -> None:
        """The server has answered, and the client has no answer yet."""


@dataclass
class Always(Rule):
    what: Fault

    def fault(self, request: Request) -> Fault | None:
        return self.what


@dataclass
class FirstCommit(Rule):
    """That happens to the first commit, and `then` to whatever follows."""

    what: Fault
    then: Fault | None = None
    came: bool = False

    def fault(self, request: Request) -> Fault | None:
        if self.came or not request.is_commit:
            return self.then if self.came else None
        self.came = True
        return self.what


@dataclass
class OneChange(Rule):
    """That happens to the change of that number; `where`: only those of such a path are counted."""

    number: int
    what: Fault
    where: str = ""

    def fault(self, request: Request) -> Fault | None:
        counts = request.changes and bool(re.search(self.where, request.path))
        self.number -= counts
        return self.what if counts and not self.number else None


@dataclass
class Failing(Rule):
    """Every so many requests one of them fails, in each of these ways in turn."""

    every: int
    faults: tuple[Fault, ...]
    came: int = 0

    def fault(self, request: Request) -> Fault | None:
        self.came += 1
        turn, rest = divmod(self.came, self.every)
        return None if rest else self.faults[turn % len(self.faults)]


@dataclass
class Kill(Rule):
    """SIGKILL at a change of that number, before the server sees it or after it is done.

    Args:
        group: to its group.
        where: only changes of such a path are counted.
    """

    pid: int
    number: int
    after: bool
    victim: Request | None = None
    group: bool = False
    where: str = ""

    def fault(self, request: Request) -> Fault | None:
        counts = request.changes and bool(re.search(self.where, request.path))
        self.number -= counts
        if self.victim or self.number or not counts:
            return None
        self.victim = request
        if self.after:
            return None
        self._kill()
        return Fault.LOST_BEFORE

    def done(self, request: Request) -> None:
        if self.after and request is self.victim:
            self._kill()

    def _kill(self) -> None:
        (os.killpg if self.group else os.kill)(self.pid, signal.SIGKILL)


class Proxy:
    """One server behind another address."""

    def __init__(self, port: int, environment: Mapping[str, str], control: Connection) -> None:
        self.port, self.environment = port, environment
        self._control, self._one = control, threading.Lock()

    def let(self, rule: Rule, delay: float = 0.0) -> None:
        """From now on; the requests before it are forgotten. `delay`: seconds that each takes."""
        self._ask((rule, delay))

    @property
    def seen(self) -> list[Request]:
        found: list[Request] = self._ask(None)
        return found

    @property
    def counts(self) -> Counter[str]:
        return Counter(request.method for request in self.seen)

    def _ask(self, question: Any) -> Any:
        with self._one:
            self._control.send(question)
            assert self._control.poll(PATIENCE)
            return self._control.recv()


@contextmanager
def proxy(server: Any) -> Iterator[Proxy]:
    """Before an `integration.services.store_server.StoreServer`."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=serve, args=(theirs, server.port, server.data, server.handler), daemon=True)
    process.start()
    try:
        assert ours.poll(PATIENCE)
        port = ours.recv()
        yield Proxy(port, server.environment_at(port), ours)
    finally:
        process.kill()
        process.join(PATIENCE)
        ours.close()
        theirs.close()


def serve(control: Connection, upstream: int, data: Path, handler: type[Handler]) -> None:
    listening = Server(("127.0.0.1", 0), handler)
    listening.upstream, listening.data = upstream, data
    threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True).start()
    control.send(listening.server_port)
    while True:
        question = control.recv()
        if question is None:
            control.send(list(listening.seen))
        else:
            listening.rule, listening.delay = question
            listening.seen.clear()
            control.send(None)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    handle_error = staticmethod(lambda request, address: None)  # clients that are killed, or have given up
    request_queue_size = 128
    upstream: int
    data: Path
    rule, delay = Rule(), 0.0

    def __init__(self, *arguments: Any) -> None:
        self.seen: list[Request] = []
        self.one, self.alone = threading.Lock(), threading.Lock()
        super().__init__(*arguments)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        conditional = "*" in self.headers.get_all("If-None-Match", []) or "x-goog-if-generation-match" in self.headers
        asked = urlsplit(self.path)
        conditional |= "ifGenerationMatch=0" in asked.query
        request = Request(self.command, unquote(asked.path), conditional, unquote(asked.query))
        time.sleep(self.server.delay)
        with self.server.one:
            self.server.seen.append(request)
            fault = self.server.rule.fault(request)
        match fault:
            case Fault.LOST_BEFORE:
                self.close_connection = True
            case Fault.BUSY:
                self._send(503, {}, ERROR % b"SlowDown")
            case Fault.DENIED:
                self._send(403, {}, ERROR % b"AccessDenied")
            case Fault.NO_SERVER:
                self._send(404, {}, b"404 page not found")
            case Fault.UNKNOWN if request.conditional:
                self._send(501, {}, ERROR % b"NotImplemented")
            case Fault.UNCONDITIONAL if request.conditional:
                with self.server.alone:
                    (self.server.data / request.path.lstrip("/")).unlink(missing_ok=True)
                    self._forward(request, body, None)
            case _:
                self._forward(request, body, fault)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer

    def _forward(self, request: Request, body: bytes, fault: Fault | None) -> None:
        found = self._ask(body)
        self.server.rule.done(request)
        if fault is Fault.HELD:
            time.sleep(PATIENCE)
        if found is None or fault in (Fault.LOST, Fault.HELD):  # None: the server is not there
            self.close_connection = True
        elif fault is Fault.BUSY_AFTER:
            self._send(503, {}, ERROR % b"SlowDown")
        else:
            self._send(*found, broken=fault is Fault.BROKEN)

    def _ask(self, body: bytes) -> Answer | None:
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=PATIENCE)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():  # the host among them: it is signed
                if name.lower() not in HOP:
                    upstream.putheader(name, value)
            upstream.endheaders(body)
            found = upstream.getresponse()
            headers = {name: value for name, value in found.getheaders() if name.lower() not in HOP}
            return found.status, headers, found.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            upstream.close()

    def _send(self, status: int, headers: dict[str, str], body: bytes, broken: bool = False) -> None:
        told = {name.lower(): value for name, value in headers.items()}
        length = told.get("content-length", str(len(body))) if self.command == "HEAD" else str(len(body))
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() != "content-length":
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if broken else body)
        self.close_connection |= broken
