"""The probe of real stores, as they are and behind proxies that lie, of HDFS and of a disk."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from integration.faults.s3_proxy import proxy
from integration.probe.lying_stores import CANNOT, EXPECTED, HANDLERS, Lie, Lying
from integration.readers.kafka_reader import until
from integration.services.hdfs import Hdfs
from integration.services.s3 import S3
from integration.services.store_server import KEY, StoreServer
from integration.services.stores import SERVERS, on_most, running
from interruptible import CLI
from patience import PATIENCE

from onceonly.cli import main
from onceonly.probe import folders, storage
from onceonly.probe.workers import Job
from onceonly.storage.objects import Objects

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
WORKERS = 4
UNTRIED = {"s3": {"durability"}, "az": {"durability"}, "gs": {"durability"}}


@pytest.fixture(scope="module", params=list(SERVERS))
def store(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    with running(request, request.param) as made:
        yield made


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path))
    return tmp_path


def use(environment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def probe(url: str, *args: object) -> tuple[int, dict[str, Any]]:
    given = ["probe", url, "--workers", WORKERS, "--seconds", 0, "--json", *args]
    result = CliRunner().invoke(main, list(map(str, given)))
    assert KEY not in result.output
    report = json.loads(result.stdout)
    assert "promises" in report, report
    return result.exit_code, report


def with_verdict(report: dict[str, Any], verdict: str) -> set[str]:
    return {finding["promise"] for finding in report["promises"] if finding["verdict"] == verdict}


def names_below(uri: str) -> list[str]:
    return [entry.path for entry in Objects(uri).list_objects()]


@pytest.mark.parametrize("lie", list(Lie), ids=lambda lie: lie.name)
def test_a_store_is_believed_only_as_far_as_it_keeps_its_word(
    lie: Lie, store: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (store.scheme, lie) in CANNOT:
        pytest.skip("the condition of a request is signed there")
    monkeypatch.setattr(store, "handler", HANDLERS[store.scheme], raising=False)
    uri = store.uri(f"probed-{lie.name.lower()}")
    use(store.environment, monkeypatch)
    Objects(uri).write("theirs", b"kept")
    with proxy(store) as lying:
        use(lying.environment, monkeypatch)
        lying.let(Lying(lie))
        code, report = probe(uri)
    broken = with_verdict(report, "broken")
    print(f"{store.scheme} {lie.name}: {code}, broken: {sorted(broken)}")
    for finding in report["promises"]:
        print(f"  {finding['promise']:<26}{finding['verdict']:<20}{finding['seen']}")
    assert EXPECTED[lie] <= broken
    assert (code, bool(broken)) == ((0, False) if lie is Lie.NONE else (8, True))
    if lie is Lie.NONE:
        assert with_verdict(report, "could not be tried") == UNTRIED[store.scheme]
    use(store.environment, monkeypatch)
    assert names_below(uri) == ["theirs"]


@on_most
def test_sixteen_processes_probe_for_some_seconds(store: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    use(store.environment, monkeypatch)
    uri = store.uri("sixteen")
    code, report = probe(uri, "--workers", 16, "--seconds", 5)
    print(json.dumps(report, indent=1))
    assert (code, report["from"], report["verdict"]) == (0, "16 processes", "kept")
    assert names_below(uri) == []


def test_leftovers_are_removed(store: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    use(store.environment, monkeypatch)
    uri, now = store.uri("left"), datetime.now(UTC)
    old, new = (folders.make_name(now - timedelta(hours=hours)) for hours in (3, 1))
    for name in (old, new, "theirs"):
        Objects(uri).write(f"{name}/entries/1", b"left")
    place = Job(uri, folders.make_name(now), 1, 0).open_place()
    assert storage.remove_leftovers(place, now) == [old]
    assert names_below(uri) == [f"{new}/entries/1", "theirs/entries/1"]


def test_hdfs_keeps_its_promises(hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEONLY_WEBHDFS", hdfs.webhdfs)
    hdfs.fs.mkdir("/probed")
    code, report = probe(f"{hdfs.root}/probed")
    print(json.dumps(report, indent=1))
    needless = {"reading-after-overwriting", "whole-contents", "conditional-copies", "delta-commits", "durability"}
    assert (code, with_verdict(report, "could not be tried")) == (0, needless)
    assert hdfs.files(f"{hdfs.root}/probed") in ([], ["/probed"])


@on_most
def test_tasks_of_spark_probe_as_processes_do(
    store: StoreServer, spark_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(store.environment, monkeypatch)
    monkeypatch.setenv("SPARK_REMOTE", spark_server)
    uri = store.uri("from-spark")
    code, report = probe(uri, "--from", "spark")
    print(report["from"], {finding["promise"]: finding["verdict"] for finding in report["promises"]})
    assert (code, report["rounds"], with_verdict(report, "could not be tried")) == (0, 1, UNTRIED[store.scheme])
    assert "of Spark" in report["from"] and names_below(uri) == []


def test_ctrl_c_ends_the_tasks_of_spark(
    s3: S3, spark_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would go on to write into the folder that was removed."""
    use(s3.environment, monkeypatch)
    monkeypatch.setenv("SPARK_REMOTE", spark_server)
    uri = s3.uri("interrupted")
    command = [*CLI, "probe", uri, "--from", "spark", "--workers", "4", "--seconds", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        until(lambda: names_below(uri) != [], what="the tasks write")
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=PATIENCE)[0].decode()
    print(output)
    assert process.returncode == 130
    assert probe(uri, "--from", "spark")[0] == 0  # its tasks need the places of those before
    assert names_below(uri) == []
