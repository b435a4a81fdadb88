"""For the tests that kill processes at their requests to S3."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from integration.s3 import S3
from integration.s3_proxy import Proxy, proxy


@pytest.fixture
def server(s3: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """This process asks it directly."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3


@pytest.fixture
def between(server: S3) -> Iterator[Proxy]:
    """Through which a process asks that is to be killed."""
    with proxy(server) as running:
        yield running
