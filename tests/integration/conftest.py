"""For every test on real services."""

from collections.abc import Iterator

import pytest
from integration.programs.children import end_children
from integration.projects import kafka_writers


@pytest.fixture(autouse=True)
def kafka_writer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who writes the rows of Kafka sinks, where a test names it."""
    if hasattr(request, "param"):
        monkeypatch.setenv(kafka_writers.VARIABLE, request.param)


@pytest.fixture(autouse=True)
def no_child_outlives_its_test() -> Iterator[None]:
    yield
    end_children()
