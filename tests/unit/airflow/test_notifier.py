"""The notifier that posts to a chat's webhook: what it says, where to, and that it gives no secret away."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from codes import raises
from unit.world import World

from onceonly.errors import InDoubt, NotCommitted
from onceonly.pipeline.gate import Gate
from onceonly.pipeline.sinks import DeltaSink

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("airflow_home")]
SECRET = "T000/B000/Kn0wn-t0-few"


@dataclass
class Chat:
    """A webhook that keeps what is posted to it."""

    answers: int = 200
    posted: list[tuple[str, Any]] = field(default_factory=list)
    logins: list[str | None] = field(default_factory=list)
    port: int = 0


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Iterator[Chat]:
    kept = Chat()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept.posted.append((self.path, json.loads(body)))
            kept.logins.append(self.headers["Authorization"])
            self.send_response(kept.answers)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept.port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    connects(monkeypatch, f"http://127.0.0.1:{kept.port}/services", SECRET)
    yield kept
    server.shutdown()
    server.server_close()


def connects(monkeypatch: pytest.MonkeyPatch, host: str, password: str | None = None) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_CHAT", json.dumps({"conn_type": "http", "host": host, "password": password}))


def failed(error: Exception, **task: Any) -> dict[str, Any]:
    ti = SimpleNamespace(dag_id="flights_dag", run_id="a run", task_id="commit")
    return {"ti": ti, "task": SimpleNamespace(**task), "exception": error}


def test_a_sink_in_doubt_is_told_with_what_to_do_and_the_page(chat: Chat) -> None:
    from onceonly.airflow import WebhookNotifier

    error = InDoubt("flights epoch 7: sink 'late' is in doubt.", "Its marker expired.", "onceonly resolve flights 7 …")
    WebhookNotifier("chat")(failed(error, pipeline="flights", linked_epoch=7))
    ((path, said),) = chat.posted
    assert path == f"/services/{SECRET}"
    first, *error_lines, page = said["text"].split("\n")
    assert first == "flights_dag, run a run: task 'commit' has failed."
    assert error_lines == str(error).split("\n")
    assert page.endswith("/onceonly/pipelines/flights/7")


def test_what_is_held_is_told_with_its_checks_and_both_commands(chat: Chat, tmp_path: Path) -> None:
    from onceonly.airflow import WebhookNotifier, notices

    world = World(tmp_path, sinks=[DeltaSink("lake", "lake")], gate=Gate(min_rows={"lake": 9}, on_fail="hold"))
    world.plan()
    world.stage()
    world.parts.inspector(world.pipeline).find("critical")
    held = world.coordinator.gate("flights", 1, "run-1")
    assert list(notices.notify([WebhookNotifier("chat")], {}, held)) == []
    text = chat.posted[0][1]["text"]
    for part in (
        "flights epoch 1 is held",
        "a fake check",
        "onceonly approve flights 1",
        "/onceonly/pipelines/flights/1",
    ):
        assert part in text, part


def test_each_of_several_that_are_held_has_its_own_text(chat: Chat, tmp_path: Path) -> None:
    from onceonly.airflow import WebhookNotifier, notices

    notifier = WebhookNotifier("chat", text="{{ held.pipeline }}")
    for name in ("flights", "orders"):
        planned = World(tmp_path, name=name, sinks=[DeltaSink("lake", name)]).plan()
        assert planned and list(notices.notify([notifier], {}, planned)) == []
    assert [said["text"] for _, said in chat.posted] == ["flights", "orders"]


def test_a_text_of_ones_own_is_a_template(chat: Chat) -> None:
    from onceonly.airflow import WebhookNotifier

    WebhookNotifier("chat", text="{{ ti.task_id }}: {{ exception }}")(failed(NotCommitted("no rows.")))
    assert chat.posted[0][1] == {"text": "commit: no rows."}


def test_no_login_of_a_netrc_is_sent_to_a_chat(chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onceonly.airflow import WebhookNotifier

    (tmp_path / "netrc").write_text("default login me password s3cret")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    WebhookNotifier("chat")(failed(NotCommitted("it failed")))
    assert chat.logins == [None]


def test_secrets_of_the_task_are_not_posted(chat: Chat) -> None:
    from airflow.sdk.log import mask_secret

    from onceonly.airflow import WebhookNotifier

    mask_secret("0f-a-bucket")
    WebhookNotifier("chat")(failed(NotCommitted("s3://key:secret@bucket refused 0f-a-bucket.")))
    assert "s3://…@bucket refused ***." in chat.posted[0][1]["text"]


@pytest.mark.parametrize("status", [404, 500, 302])
def test_an_answer_that_is_no_yes_is_an_error_without_the_address(chat: Chat, status: int) -> None:
    from onceonly.airflow import WebhookNotifier

    chat.answers = status
    with raises(NotCommitted, "notification-failed") as refused:
        WebhookNotifier("chat").notify(failed(NotCommitted("no rows.")))
    assert str(status) in refused.value.why
    assert SECRET not in repr(refused.value) and "B000" not in str(refused.value)
    assert len(chat.posted) == 1  # it is sent nowhere else


def test_nobody_answers_and_the_error_still_keeps_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    import traceback

    from airflow.sdk._shared.secrets_masker import redact

    from onceonly.airflow import WebhookNotifier

    connects(monkeypatch, "http://127.0.0.1:1/services", SECRET)
    with raises(NotCommitted, "notification-failed") as refused:
        WebhookNotifier("chat").notify(failed(NotCommitted("no rows.")))
    assert SECRET not in "".join(traceback.format_exception(refused.value))
    with pytest.raises(NotCommitted) as refused:
        WebhookNotifier("chat")(failed(NotCommitted("no rows.")))  # Airflow logs it, and its callbacks fail nothing
    assert SECRET not in "".join(traceback.format_exception(refused.value))
    assert redact(f"http://127.0.0.1:1/services/{SECRET}") == "***"


@pytest.mark.parametrize(
    ("host", "password", "url"),
    [
        ("https://chat.example.com/hooks/xyz", None, "https://chat.example.com/hooks/xyz"),
        ("https://chat.example.com/hooks/", "/xyz", "https://chat.example.com/hooks/xyz"),
        ("chat.example.com", "xyz", "https://chat.example.com/xyz"),
    ],
)
def test_the_address_is_the_host_and_its_last_part_the_password(
    monkeypatch: pytest.MonkeyPatch, host: str, password: str | None, url: str
) -> None:
    from onceonly.airflow.notices import webhook_address

    connects(monkeypatch, host, password)
    assert webhook_address("chat") == url
