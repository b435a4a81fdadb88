"""A notifier that needs no provider: it posts to the incoming webhook of a chat (Slack, Mattermost, Google Chat …)."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook, BaseNotifier
from airflow.sdk.log import mask_secret

from onceonly.airflow import notices
from onceonly.errors import NotCommitted
from onceonly.runtime.cluster_api import leave_login_out

ANSWER_TIMEOUT_SECONDS = 10.0


class WebhookNotifier(BaseNotifier):
    """Reports what a checkpoint waits for, or why a task failed, with what to do and the address of its page.

    For `on_held`, and as a task's `on_failure_callback`: a stage that failed, a gate that refused, a sink in doubt.

    Args:
        conn_id: an Airflow connection. Its host is the webhook's address (https://…); a password is its last part.
        text: a template that replaces the default message.
    """

    template_fields = ("text",)

    def __init__(self, conn_id: str, text: str = "") -> None:
        super().__init__()
        self.conn_id, self.text = conn_id, text

    def notify(self, context: Any) -> None:
        """Post the message.

        Raises:
            NotCommitted: nobody was notified. Its text does not show the address: who knows it can post.
        """
        import requests

        url = address(self.conn_id)
        try:
            body = {"text": self.text or notices.write_message(context)}
            answer = requests.post(
                url, json=body, auth=leave_login_out, timeout=ANSWER_TIMEOUT_SECONDS, allow_redirects=False
            )
        except requests.RequestException as error:
            raise self._failure(type(error).__name__) from None
        if not answer.ok or answer.is_redirect:
            raise self._failure(f"it answered {answer.status_code}")

    def _failure(self, why: str) -> NotCommitted:
        return NotCommitted(f"nobody was notified through the connection '{self.conn_id}'.", why)


def address(conn_id: str) -> str:
    """Return the address of the webhook, which no log shows from now on."""
    connection: Any = BaseHook.get_connection(conn_id)
    host = connection.host or ""
    if "://" not in host:
        port = f":{connection.port}" if connection.port else ""
        host = f"{connection.schema or 'https'}://{host}{port}"
    url = host
    if connection.password:
        url = f"{host.rstrip('/')}/{connection.password.lstrip('/')}"
    mask_secret(url)
    return url
