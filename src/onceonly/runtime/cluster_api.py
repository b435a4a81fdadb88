"""One request to the HTTP API of a cluster, and what is known when there is no answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import requests
from urllib3.exceptions import NewConnectionError

from onceonly.errors import NotCommitted, OutcomeUnknown

ANSWER_TIMEOUT_SECONDS = 10.0


def send_request(
    who: str, method: str, url: str, todo: str, body: Mapping[str, Any] | None = None, **options: Any
) -> requests.Response:
    """Return an answer, good or bad; from the address that is named: no redirect is followed.

    Args:
        who: is asked, for messages.
        todo: what to do when nobody answers there.
    Raises:
        NotCommitted: there was no connection, so nothing was sent.
        OutcomeUnknown: there is no answer: what was sent may have been done.
    """
    options = {"auth": leave_login_out, **options}
    try:  # a connection of its own: none that has gone stale is used again
        return requests.request(
            method, url, json=body, timeout=ANSWER_TIMEOUT_SECONDS, allow_redirects=False, **options
        )
    except OSError as error:  # requests' own are among them; and a file of keys or authorities that is missing
        if not _was_never_sent(error):
            raise OutcomeUnknown(f"{who} did not answer {method} {url}.", f"{error!r}", code="no-answer") from error
        raise NotCommitted(f"{who} does not answer at {url}.", f"{error}", todo, code="cluster-unreachable") from error


def _was_never_sent(error: Exception) -> bool:
    """Return whether no connection came about.

    requests says `ConnectionError` of a connection that broke after the request was sent, too.
    """
    if not isinstance(error, requests.ConnectionError) or not error.args:
        return False
    return isinstance(getattr(error.args[0], "reason", None), NewConnectionError)


def leave_login_out(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Return the request unchanged: an `auth` by which no login out of a .netrc is sent."""
    return request


def parse_object(answer: requests.Response) -> dict[str, Any] | None:
    """Return the JSON object that an answer holds, if it holds one."""
    try:
        content = answer.json()
    except ValueError:
        return None
    return content if isinstance(content, dict) else None
