"""Tokens from an endpoint: how it is asked, what is kept, what an answer that is no token becomes."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest
from codes import raises

from onceonly.errors import NotCommitted
from onceonly.kafka.oidc import Tokens

pytestmark = pytest.mark.slow


class Endpoint(HTTPServer):
    """Gives the same answer to everybody, and keeps what it was asked."""

    status, answer, headers = 200, json.dumps({"access_token": "t1", "expires_in": 300}), {}
    asked: list[Any]


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.server.asked.append((self.headers["Authorization"], form))
        self.send_response(self.server.status)
        for name, value in {"Content-Length": str(len(self.server.answer)), **self.server.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.server.answer.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(("127.0.0.1", 0), Handler) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def tokens(endpoint: Endpoint, **more: str) -> Tokens:
    given = {"token.endpoint.url": f"http://127.0.0.1:{endpoint.server_port}/token", "client.id": "zoë"}
    settings = {**given, "client.secret": "s3cret", **more}
    return Tokens({f"sasl.oauthbearer.{name}": value for name, value in settings.items()})


def test_it_is_asked_once_with_the_client_s_credentials(endpoint: Endpoint) -> None:
    found = tokens(endpoint, scope="kafka")
    assert (found.token(), found.token()) == ("t1", "t1")
    login = "Basic " + base64.b64encode("zoë:s3cret".encode()).decode()
    assert endpoint.asked == [(login, {"grant_type": ["client_credentials"], "scope": ["kafka"]})]


@pytest.mark.parametrize(
    ("status", "answer"), [(401, "no"), (200, "no JSON"), (200, "[]"), (200, "{}"), (500, '{"access_token": "t1"}')]
)
def test_what_is_no_token_can_be_tried_again(endpoint: Endpoint, status: int, answer: str) -> None:
    endpoint.status, endpoint.answer = status, answer
    with raises(NotCommitted, "token-not-issued", "http://127") as caught:
        tokens(endpoint).token()
    assert "s3cret" not in str(caught.value)


def test_credentials_are_not_sent_on(endpoint: Endpoint) -> None:
    endpoint.status, endpoint.headers = 307, {"Location": f"http://127.0.0.1:{endpoint.server_port}/elsewhere"}
    endpoint.answer = "moved"
    with raises(NotCommitted, "token-not-issued"):
        tokens(endpoint).token()
    assert len(endpoint.asked) == 1
