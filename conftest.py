"""Real services for the tests that ask for them: started once for all test processes, in a temporary home."""

import atexit
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

import pytest

HELPERS = ("faults", "programs", "projects", "readers", "services")
pytest.register_assert_rewrite(*(f"integration.{name}" for name in HELPERS))  # before they are imported

from hypothesis import settings
from integration.services import airflow_database
from integration.services import hdfs as hdfs_daemons
from integration.services import s3 as s3_server
from patience import PATIENCE

from onceonly.dev.services import Services
from onceonly.dev.services.kafka import KafkaBroker
from onceonly.dev.services.service import Service
from onceonly.dev.services.spark import TOKEN, SparkConnect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


settings.register_profile("onceonly", deadline=None)  # no test depends on speed
settings.load_profile("onceonly")

HOME = pytest.StashKey[Path]()
# Less to compile and to collect: an eighth of the work. Without the second compiler a JVM has room for 48 MB of code
# only, and a server of thousands of queries spent a fifth of its time on making room.
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:ReservedCodeCacheSize=256m")
# Spark compiles whole stages, as by default, and interprets the expressions outside of them. It would compile those for
# each task that reads Delta's log: a quarter of the server's CPU in tests of Delta.
INTERPRETED = "-Dspark.sql.codegen.factoryMode=NO_CODEGEN"
LONG = ("test_tutorial.py", "test_repair_pages.py", "test_wheel.py")  # one test of minutes each: begun first


def pytest_configure(config: pytest.Config) -> None:
    """Where the services of this run live, which may start slowly; and SIGTERM runs the teardown, as Ctrl-C does."""
    Service.seconds_to_start = SparkConnect.seconds_to_start = PATIENCE
    SparkConnect.java_options = (*SHORT_LIVED, INTERPRETED)
    KafkaBroker.java_options = (*KafkaBroker.java_options, *SHORT_LIVED)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", SHORT_LIVED[0])  # a driver of its own may have another collector
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    given: dict[str, str] | None = getattr(config, "workerinput", None)
    config.stash[HOME] = Path(given["services"] if given else tempfile.mkdtemp(prefix="onceonly-tests-"))
    _let_processes_import_packages()
    os.environ[airflow_database.SHARED] = str(config.stash[HOME] / "airflow-database")


def _let_processes_import_packages() -> None:
    """Spark's workers, and programs that tests start, import the packages beside Onceonly from here, too."""
    folders = [str(folder) for folder in sorted(Path(__file__).parent.glob("packages/*/src"))]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*folders, *filter(None, paths)]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay until the end: to look for garbage among them takes half the time of collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        atexit.register(gc.unfreeze)  # DuckDB warns of what is left when the interpreter ends


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Else the last worker runs for minutes beside idle ones."""
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist: its workers share the services of this process, which ends them."""
    node.workerinput["services"] = str(node.config.stash[HOME])


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        _services(config).down()
        hdfs_daemons.down(config.stash[HOME])
        rmtree(config.stash[HOME])


def _services(config: pytest.Config) -> Services:
    return Services(config.stash[HOME], port=0, spark_port=0)


@pytest.fixture(scope="session")
def services(request: pytest.FixtureRequest) -> Services:
    """The embedded services of this test run; nothing runs before it is asked for."""
    return _services(request.config)


@pytest.fixture(scope="session")
def broker(services: Services) -> str:
    """The bootstrap address of a real broker."""
    return services.up().bootstrap


@pytest.fixture(scope="session")
def hdfs(request: pytest.FixtureRequest) -> hdfs_daemons.Hdfs:
    """A real NameNode and DataNode."""
    return hdfs_daemons.up(request.config.stash[HOME])


@pytest.fixture(scope="session")
def s3() -> Iterator[s3_server.S3]:
    """A real S3 server of this test process alone: a test may kill it, and starts it again."""
    if s3_server.BINARY is None:
        pytest.skip(s3_server.MISSING)
    with s3_server.server() as running:
        yield running


@pytest.fixture(scope="session")
def spark_server(services: Services) -> Iterator[str]:
    """The sc:// address of a real Spark Connect server; code under test may open the suite's one session, too."""
    found = services.up(spark=True)
    os.environ[TOKEN] = found.spark_token or ""  # for homes that are not the server's, and for child processes
    yield found.spark_remote or ""
    if "pyspark.sql.connect.session" in sys.modules:
        from pyspark.sql.connect.session import SparkSession

        for session in {SparkSession.getActiveSession(), SparkSession._get_default_session()} - {None}:
            session.stop()  # one that outlives its server, whichever thread opened it, waits for it for minutes


@pytest.fixture(scope="session")
def spark(spark_server: str) -> "SparkSession":
    """A Spark Connect session, in UTC, with Delta, Kafka and Avro."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.remote(spark_server).getOrCreate()


@pytest.fixture(autouse=True)
def connected(request: pytest.FixtureRequest) -> None:
    """PySpark forgets that there is a server once any session is stopped, and a test may have stopped its own."""
    if "spark" in request.fixturenames:
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
