"""A small REST catalog for tests: it loads and commits tables of a SQL catalog, counts requests, and fails on demand.

It speaks as much of Iceberg's REST protocol as PyIceberg needs to load a table and to commit to it.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import CommitTableRequest


@dataclass
class RestCatalog:
    """A running server.

    Args:
        catalog: that holds the tables.
        failures: what happens to the next commits: "before" (503, nothing done), "after" (done, and no answer).
    """

    catalog: Catalog
    uri: str = ""
    requests: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def properties(self) -> dict[str, str]:
        return {"type": "rest", "uri": self.uri}

    def load(self, name: str) -> dict[str, Any]:
        return as_json(self.catalog.load_table(name))

    def commit(self, name: str, body: bytes) -> dict[str, Any]:
        request = CommitTableRequest.model_validate_json(body)
        with self.lock:
            table = self.catalog.load_table(name)
            self.catalog.commit_table(table, request.requirements, request.updates)
            return as_json(self.catalog.load_table(name))


def as_json(table: Any) -> dict[str, Any]:
    return {
        "metadata-location": table.metadata_location,
        "metadata": json.loads(table.metadata.model_dump_json()),
        "config": {},
    }


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *arguments: Any) -> None:
        return

    def do_GET(self) -> None:
        rest = self.server.rest
        if self.path.startswith("/v1/config"):
            rest.requests["config"] += 1
            return self.answer(200, {"defaults": {}, "overrides": {}})
        rest.requests["load"] += 1
        try:
            return self.answer(200, rest.load(self.table_name()))
        except NoSuchTableError as error:
            return self.answer(404, error_json(error, "NoSuchTableException", 404))

    def do_POST(self) -> None:
        rest = self.server.rest
        rest.requests["commit"] += 1
        body = self.rfile.read(int(self.headers["Content-Length"]))
        failure = rest.failures.pop(0) if rest.failures else ""
        if failure == "before":
            return self.answer(503, error_json(Exception("busy"), "ServiceUnavailableException", 503))
        try:
            content = rest.commit(self.table_name(), body)
        except CommitFailedException as error:
            return self.answer(409, error_json(error, "CommitFailedException", 409))
        except ValueError as error:
            return self.answer(400, error_json(error, "ValidationException", 400))
        if failure == "after":
            self.close_connection = True
            return None  # done, and nobody is told
        return self.answer(200, content)

    def table_name(self) -> str:
        parts = self.path.split("?")[0].strip("/").split("/")
        return f"{parts[2]}.{parts[4]}"

    def answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    rest: RestCatalog


def error_json(error: Exception, kind: str, status: int) -> dict[str, Any]:
    return {"error": {"message": str(error), "type": kind, "code": status}}


@contextmanager
def serve(catalog: Catalog) -> Iterator[RestCatalog]:
    """Run a server over a catalog."""
    rest = RestCatalog(catalog)
    server = Server(("127.0.0.1", 0), Handler)
    server.rest = rest
    rest.uri = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield rest
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
