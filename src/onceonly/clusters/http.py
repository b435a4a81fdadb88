"""One question to a cluster over HTTP, and what is known when there is no answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import requests
from urllib3.exceptions import NewConnectionError

from onceonly.errors import NotCommitted, OutcomeUnknown

PATIENCE = 10.0  # seconds for an answer


def ask(
    who: str, method: str, url: str, todo: str, body: Mapping[str, Any] | None = None, **options: Any
) -> requests.Response:
    """An answer, good or bad; from the address that is named, without being sent on to another.

    Args:
        who: is asked, for messages.
        todo: what to do when nobody answers there.
    Raises:
        NotCommitted: there was no connection, so nothing was sent.
        OutcomeUnknown: there is no answer: what was sent may have been done.
    """
    given = {"auth": as_it_is, **options}
    try:  # a connection of its own: none that has gone stale is used again
        return requests.request(method, url, json=body, timeout=PATIENCE, allow_redirects=False, **given)
    except OSError as error:  # requests' own are among them; and a file of keys or authorities that is missing
        if not _was_never_sent(error):
            raise OutcomeUnknown(f"{who} did not answer {method} {url}.", f"{error!r}") from error
        raise NotCommitted(f"{who} does not answer at {url}.", f"{error}", todo) from error


def _was_never_sent(error: Exception) -> bool:
    """Whether no connection came about; requests says `ConnectionError` of one that broke after the question, too."""
    cause = error.args[0] if isinstance(error, requests.ConnectionError) and error.args else None
    return isinstance(getattr(cause, "reason", None), NewConnectionError)


def as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """No login out of a .netrc is sent."""
    return request


def fields(answer: requests.Response) -> dict[str, Any] | None:
    """The object that an answer holds, if it holds one."""
    try:
        found = answer.json()
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
