"""Notices to people: that a checkpoint is held, that an approval has ended, that a task has failed.

`WebhookNotifier` needs no provider: it posts to the incoming webhook of a chat (Slack, Mattermost, Google Chat …).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, BaseNotifier
from airflow.sdk._shared.secrets_masker import redact
from airflow.sdk.log import mask_secret

from onceonly import redaction
from onceonly.airflow.base import MAX_ERROR_CHARACTERS, NO_ERROR, checkpoint_page
from onceonly.checkpoint.model import Event
from onceonly.errors import NotCommitted
from onceonly.views import descriptions

if TYPE_CHECKING:
    from onceonly.checkpoint.model import Checkpoint, Row

WEBHOOK_TIMEOUT_SECONDS = 10.0
Notifier = Callable[[Any], Any]  # an Airflow notifier, or any function of a task's context


def is_due(checkpoint: Checkpoint, row: Row) -> bool:
    """Whether people are notified of what `row` has recorded: it is held, or an approval has ended with its attempt."""
    if row.event is Event.VERDICT:
        return checkpoint.is_held
    return row.event is Event.ABORTING and "unfit" in row.body and checkpoint.approved is not None


def make_notice(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what a notifier gets as `held` in its context, beside what Airflow has there.

    Of an approval that has ended: there is nothing to decide, so it has no checks, and no commands.
    """
    from onceonly.coordinator.gate import list_failed_checks

    checks: list[str] = []
    approve = abort = ""
    if checkpoint.is_held:
        checks = list_failed_checks(checkpoint.verdict or {})
        approve, abort = descriptions.list_decision_commands(
            checkpoint.pipeline, checkpoint.epoch, checkpoint.changed_seq
        )
    return {
        "pipeline": checkpoint.pipeline,
        "epoch": checkpoint.epoch,
        "text": descriptions.describe_needed_action(checkpoint),
        "checks": checks,
        "page": checkpoint_page(checkpoint.pipeline, checkpoint.epoch),
        "approve": approve,
        "abort": abort,
    }


def write_message(context: Any) -> str:
    """Return a message for people, without secrets: what is held, wrong or has failed, why, and where to look."""
    notice = context.get("held")
    if notice:
        checks = [f"  {check}" for check in notice["checks"]]
        return "\n".join([notice["text"], *checks, notice["page"]])
    wrong = context.get("wrong")
    if wrong:
        return "\n".join([wrong["text"], *(f"  {finding}" for finding in wrong["findings"]), wrong["page"]])
    task, error = context.get("task"), context.get("exception") or context.get("reason") or NO_ERROR
    what = f"{context['ti'].dag_id}, run {context['ti'].run_id}: task '{context['ti'].task_id}' has failed."
    why = redaction.hide_credentials(redact(str(error)))[:MAX_ERROR_CHARACTERS]
    lines = [what, why]
    pipeline = getattr(task, "pipeline", None)
    if pipeline:
        name, epoch = getattr(pipeline, "name", pipeline), getattr(task, "linked_epoch", None)
        lines.append(checkpoint_page(name, epoch))
    return "\n".join(lines)


def notify(notifiers: Sequence[Notifier], context: Any, checkpoint: Checkpoint) -> Iterator[str]:
    """Call each notifier, and yield for the log what failed. Nothing depends on who listens."""
    context_with_notice = {**context, "held": make_notice(checkpoint)}
    for notifier in notifiers:
        try:
            copy(notifier)(context_with_notice)  # one of Airflow's keeps the text that it has rendered
        except Exception as error:
            text = context_with_notice["held"]["text"]
            yield f"{text}\nThe notifier failed, so perhaps nobody knows: {error!r}"


def notify_wrong(notifiers: Sequence[Notifier], context: Any, notice: Mapping[str, Any]) -> Iterator[str]:
    """Call each notifier with what a verification has found wrong, and yield for the log what failed."""
    for notifier in notifiers:
        try:
            copy(notifier)({**context, "wrong": dict(notice)})
        except Exception as error:
            yield f"{notice['text']}\nThe notifier failed, so perhaps nobody knows: {error!r}"


def notify_once(notifiers: Sequence[Notifier], context: Any, checkpoints: list[Checkpoint], log: Any) -> None:
    """Notify people of these checkpoints, which are taken off the list, and log what failed."""
    while checkpoints:
        for failure in notify(notifiers, context, checkpoints.pop()):
            log.warning("%s", failure)


def as_list(notifiers: Notifier | Sequence[Notifier] | None) -> list[Notifier]:
    """Return one, several or no notifiers as a list, as Airflow takes its own callbacks."""
    if notifiers is None:
        return []
    return list(notifiers) if isinstance(notifiers, Sequence) else [notifiers]


class WebhookNotifier(BaseNotifier):
    """Reports what a checkpoint waits for, or why a task failed, with what to do and the address of its page.

    For `on_held` and `on_wrong`, and as a task's `on_failure_callback`: a stage that failed, a gate that refused, a
    sink in doubt.

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

        from onceonly.runtime.cluster import leave_login_out

        url = webhook_address(self.conn_id)
        try:
            body = {"text": self.text or write_message(context)}
            answer = requests.post(
                url, json=body, auth=leave_login_out, timeout=WEBHOOK_TIMEOUT_SECONDS, allow_redirects=False
            )
        except requests.RequestException as error:
            raise self._failure(type(error).__name__) from None
        if not answer.ok or answer.is_redirect:
            raise self._failure(f"it answered {answer.status_code}")

    def _failure(self, why: str) -> NotCommitted:
        return NotCommitted(
            f"nobody was notified through the connection '{self.conn_id}'.", why, code="notification-failed"
        )


def webhook_address(conn_id: str) -> str:
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
