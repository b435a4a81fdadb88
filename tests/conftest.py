"""Real services for the tests that ask for them: started once, on free ports, in a temporary home."""

import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from onceonly.services import Services

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_configure() -> None:
    """Let SIGTERM run the fixtures' teardown, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """The embedded services of this test run; nothing runs before it is asked for."""
    services = Services(tmp_path_factory.mktemp("services"), port=0, spark_port=0)
    yield services
    services.down()


@pytest.fixture(scope="session")
def broker(services: Services) -> str:
    """The bootstrap address of a real broker."""
    return services.up().bootstrap


@pytest.fixture(scope="session")
def spark_server(services: Services) -> Iterator[str]:
    """The sc:// address of a real Spark Connect server; code under test may open the suite's one session, too."""
    yield services.up(spark=True).spark_remote or ""
    if "pyspark" in sys.modules:
        from pyspark.sql import SparkSession

        if session := SparkSession.getActiveSession():
            session.stop()  # one that outlives its server waits for it for minutes


@pytest.fixture(scope="session")
def spark(spark_server: str) -> "SparkSession":
    """A Spark Connect session, in UTC, with Delta, Kafka and Avro."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.remote(spark_server).getOrCreate()
