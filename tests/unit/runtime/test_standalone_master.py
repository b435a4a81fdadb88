"""What Spark's standalone master says of a driver, and what it says of itself."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from codes import raises

from onceonly.errors import NotCommitted, OutcomeUnknown
from onceonly.runtime import standalone

STATUS = {"action": "SubmissionStatusResponse", "submissionId": "driver-1"}
RECOVERING = (
    "Exception from the cluster:\nCurrent state is not alive: RECOVERING. Can only request driver status in ALIVE …"
)


def state(monkeypatch: pytest.MonkeyPatch, **said: Any) -> str:
    monkeypatch.setattr(standalone, "_ask", lambda *_: {**STATUS, **said})
    return standalone.Standalone("http://master:6066").look("driver-1").state


def test_a_master_that_is_recovering_says_nothing_about_the_driver(monkeypatch):
    with raises(NotCommitted, "cluster-refused", match="driver-1"):
        state(monkeypatch, success=False, message=RECOVERING)


def test_a_driver_that_the_master_does_not_know_is_gone(monkeypatch):
    assert state(monkeypatch, success=False, message=None) == "GONE"
    assert state(monkeypatch, success=True, driverState="RUNNING") == "RUNNING"


@pytest.mark.parametrize(("said", "at_work"), [("UNKNOWN", True), ("OF_A_NEWER_SPARK", True), ("ERROR", False)])
def test_only_a_state_that_is_an_end_ends_the_wait(monkeypatch, said, at_work):
    monkeypatch.setattr(standalone, "_ask", lambda *_: {**STATUS, "success": True, "driverState": said})
    assert standalone.Standalone("http://master:6066").look("driver-1").is_at_work is at_work


# ---- what is known of a question without an answer


@contextmanager
def master(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Takes one question and answers with these bytes, or hangs up; its address, and what it was asked."""
    asked: list[bytes] = []

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            asked.append(connection.recv(65536))
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", asked
        thread.join()


def http(status: str, body: str, *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join([*head, "", body]).encode()


def test_without_a_connection_nothing_was_sent() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = probe.getsockname()[1]
    with raises(NotCommitted, "cluster-unreachable"):
        standalone._ask(f"http://127.0.0.1:{closed}", "POST", "create", {})


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", http("200 OK", "<html>"), http("200 OK", "[]")],
    ids=["hangs up", "breaks off", "is no JSON", "is no object"],
)
def test_once_asked_it_may_have_been_done(answer: bytes) -> None:
    """Also where the connection ends: requests calls that by the same name as one that never came about."""
    with master(answer) as (url, asked), pytest.raises(OutcomeUnknown):
        standalone._ask(url, "POST", "create", {})
    assert asked[0].startswith(b"POST /v1/submissions/create ")


def test_an_error_is_an_answer() -> None:
    with master(http("400 Bad Request", '{"message": "no"}')) as (url, _):
        assert standalone._ask(url, "POST", "create", {}) == {"message": "no"}


def test_nothing_is_sent_on_to_another_address() -> None:
    with master(http("200 OK", "{}")) as (elsewhere, asked):
        redirect = http("307 Temporary Redirect", "", f"Location: {elsewhere}/")
        with master(redirect) as (url, _), pytest.raises(OutcomeUnknown):
            standalone._ask(url, "POST", "create", {})
        assert asked == []
        socket.create_connection(("127.0.0.1", int(elsewhere.rpartition(":")[2]))).close()


def test_no_login_of_a_netrc_is_sent(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password s3cret")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with master(http("200 OK", "{}")) as (url, asked):
        standalone._ask(url, "GET", "status/driver-1")
    assert b"Authorization" not in asked[0]
