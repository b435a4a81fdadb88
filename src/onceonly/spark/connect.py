"""How long a Spark Connect client waits for a server that does not answer.

By itself it tries for ten minutes, call by call, and once more as its process exits, to clean a cache that Onceonly
does not use. A server that has died takes its sessions along: all that is worth waiting for is a break of the network.
"""

from __future__ import annotations

import atexit
from functools import cache
from typing import Any

from pyspark.sql.connect.client.retries import DefaultPolicy, RetryPolicyState

TRIES, LONGEST_WAIT = 8, 3000  # milliseconds between two; 18 s in all


class _Patience(DefaultPolicy):
    """Once a call has waited in vain, those that follow do not wait again."""

    def __init__(self) -> None:
        super().__init__(max_retries=TRIES, max_backoff=LONGEST_WAIT)

    def to_state(self) -> RetryPolicyState:
        return _Waiting(self)


class _Waiting(RetryPolicyState):
    def next_attempt(self, exception: BaseException | None = None) -> int | None:
        wait = super().next_attempt(exception)
        if wait is None:
            self.policy.max_retries = 0
        return wait


@cache
def bound(client: Any) -> None:
    """Let that client give up soon, and its process end without a last call."""
    client.set_retry_policies([_Patience()])
    atexit.register(client.close)  # runs before the client's own farewell, which a closed client omits
