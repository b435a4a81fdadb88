"""A Spark Connect client's patience with a server that does not answer."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import grpc
import pytest
from pyspark.sql.connect.client.retries import Retrying

from onceonly.spark.connect import limit_retries

LEAVING = """
import atexit
from onceonly.spark.connect import limit_retries

class Client:
    def set_retry_policies(self, policies): print("limited")
    def close(self): print("closed")

client = Client()
atexit.register(print, "the client's farewell")
limit_retries(client)
limit_retries(client)
"""


class Gone(grpc.RpcError):
    def code(self) -> Any:
        return grpc.StatusCode.UNAVAILABLE

    def trailing_metadata(self) -> None: ...


class Client:
    def set_retry_policies(self, policies: list[Any]) -> None:
        self.policies = policies

    def close(self) -> None: ...

    def call(self) -> list[float]:
        """What is slept through in one call of a server that is gone."""
        slept: list[float] = []
        with pytest.warns(UserWarning, match="RETRIES_EXCEEDED"), pytest.raises(Gone):
            for attempt in Retrying(self.policies, slept.append):
                with attempt:
                    raise Gone
        return slept


def test_it_waits_for_seconds_and_once() -> None:
    client = Client()
    limit_retries(client)
    first = client.call()
    assert len(first) > 3
    assert 5 < sum(first) < 25
    assert client.call() == []


def test_it_is_closed_before_its_own_farewell() -> None:
    told = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, text=True, check=True).stdout
    assert told.split("\n") == ["limited", "closed", "the client's farewell", ""]
