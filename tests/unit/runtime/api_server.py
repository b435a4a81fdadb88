"""A small Kubernetes API: pods of one namespace, answered as the API's reference says, to who has the token."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "a-token-of-a-service-account"


def status(code: int, reason: str, message: str) -> dict[str, Any]:
    """As the API answers what it does not do."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


@dataclass
class ApiServer:
    """Its pods by name, what it was asked, and its address."""

    namespace: str = "spark"
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)  # verbs that the role does not have
    made: list[dict[str, Any]] = field(default_factory=list)  # what was posted, or applied
    address: str = ""
    instead: tuple[int, Any] | None = None  # what another web server would answer in its place

    def pod(self, name: str, phase: str, labels: dict[str, str], job: str, **more: Any) -> None:
        self.pods[name] = {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": {"spark-role": "driver", **labels},
                "annotations": {"onceonly-job": job},
                "creationTimestamp": f"2026-11-23T06:00:{len(self.pods):02}Z",
            },
            "spec": {"containers": [{"name": "istio-proxy"}, {"name": "spark-kubernetes-driver"}]},
            "status": {"phase": phase, **more},
        }

    def answer(self, method: str, path: str, token: str | None, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        place = urlsplit(path)
        self.asked.append(f"{method} {path}")
        if self.instead:
            return self.instead
        if token != f"Bearer {TOKEN}":
            return 401, status(401, "Unauthorized", "Unauthorized")
        if method in self.refused:
            return 403, status(403, "Forbidden", f'pods is forbidden: User "airflow" cannot {method} resource "pods"')
        if body is not None:
            return 201, self._make(body)
        root = f"/api/v1/namespaces/{self.namespace}/pods"
        if not place.path.startswith(root):
            return 404, {"message": "404 page not found"}
        name, _, sub = place.path.removeprefix(root).strip("/").partition("/")
        return self._of(name, sub, method, parse_qs(place.query))

    def _make(self, body: dict[str, Any]) -> dict[str, Any]:
        self.made.append(body)
        body["metadata"] |= {"uid": f"uid-{len(self.made)}", "creationTimestamp": "2026-11-23T06:00:00Z"}
        if body["kind"] == "Pod":
            self.pods[body["metadata"]["name"]] = {**body, "status": {"phase": "Pending"}}
        return body

    def _of(self, name: str, sub: str, method: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        if not name:
            wanted = dict(part.split("=") for part in query["labelSelector"][0].split(","))
            found = [pod for pod in self.pods.values() if wanted.items() <= pod["metadata"]["labels"].items()]
            return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": found}
        if name not in self.pods:
            return 404, status(404, "NotFound", f'pods "{name}" not found')
        if sub == "log":
            if "container" not in query:  # of a pod with several, one has to be named
                return 400, status(400, "BadRequest", "a container name must be specified")
            return 200, "\n".join(self.logs.get(name, "").splitlines()[-int(query["tailLines"][0]) :])
        return 200, self.pods.pop(name) if method == "DELETE" else self.pods[name]


@contextmanager
def api_server() -> Iterator[ApiServer]:
    made = ApiServer()

    class Handler(BaseHTTPRequestHandler):
        def do(self) -> None:
            given = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            posted = json.loads(given) if given and self.command != "DELETE" else None
            code, said = made.answer(self.command, self.path, self.headers.get("Authorization"), posted)
            body = (said if isinstance(said, str) else json.dumps(said)).encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain" if isinstance(said, str) else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_DELETE = do_POST = do_PATCH = do

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        made.address = f"http://127.0.0.1:{server.server_address[1]}"
        yield made
        server.shutdown()
        thread.join()
