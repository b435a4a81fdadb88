"""Folders of files on a real HDFS, written by Spark, published over HTTP, read by plain fsspec and by Spark."""

from __future__ import annotations

import json
import multiprocessing
import signal
import socket
import subprocess
import sys
import time
import uuid
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from codes import raises
from integration.services.hdfs import Hdfs, writer
from integration.victims import mortal_hdfs
from patience import PATIENCE
from requests.adapters import HTTPAdapter

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.checkpoint.transaction_names import manifest_path
from onceonly.errors import CannotPublish, InvalidPipeline, NotCommitted, OutcomeUnknown
from onceonly.pipeline.sinks import FileSink
from onceonly.sinks.files import gate_view, stage
from onceonly.sinks.files.sink import FileWriter
from onceonly.spark import row_files
from onceonly.storage import manifests
from onceonly.storage.webhdfs import WebHdfsCluster
from onceonly.testing.fakes import FakeReceipts

pytestmark = pytest.mark.integration
STATE = "0123456789abcdef0123456789abcdef"
LAKES = 26  # each killed one request later than the one before; a commit of three files has fewer requests


def transaction(epoch: int = 1, attempt: int = 1) -> Transaction:
    return Transaction(STATE, "flights", "lake", epoch, attempt, f"nonce{epoch}{attempt}")


@dataclass
class Lake:
    """One target folder on HDFS."""

    hdfs: Hdfs
    folder: str

    def sink(self, **config: Any) -> FileWriter:
        return writer(self.folder, self.hdfs.webhdfs, **config)

    def stage(self, rows: Any, epoch: int = 1, **config: Any) -> Handle:
        handle: Handle = json.loads(json.dumps(self.sink(**config).stage(transaction(epoch), rows)))
        return handle

    def commit(self, handle: Handle) -> bool:
        """Whether it had been done before."""
        return self.sink().commit(handle, 1, FakeReceipts(Path("unused"))).already

    def path(self, name: str) -> str:
        """As plain fsspec calls it."""
        return f"{self.folder}/{name}".removeprefix(self.hdfs.root)

    def names(self) -> list[str]:
        """Every file in the target that a reader may see."""
        found = (name.removeprefix(self.path("")) for name in self.hdfs.fs.find(self.path("").rstrip("/")))
        return sorted(name for name in found if not name.startswith("_onceonly/"))

    def beside(self) -> list[str]:
        """What lies beside the target, and the target."""
        above = self.folder.rpartition("/")[0].removeprefix(self.hdfs.root)
        return [name.rpartition("/")[2] for name in self.hdfs.fs.ls(above)] if self.hdfs.fs.exists(above) else []

    def numbers(self) -> list[int]:
        """The rows of JSON files, read by plain fsspec."""
        lines = (line for name in self.names() for line in self.hdfs.fs.cat_file(self.path(name)).splitlines())
        return sorted(json.loads(line)["n"] for line in lines)


@pytest.fixture
def lake(hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setenv("ONCEONLY_WEBHDFS", hdfs.webhdfs)
    return Lake(hdfs, f"{hdfs.root}/{uuid.uuid4().hex}/lake")


def staged_by_hand(lake: Lake, count: int) -> Handle:
    """As `stage` leaves it, without a Spark task for each file."""
    sink, cluster = lake.sink(format="json"), WebHdfsCluster(lake.folder, lake.hdfs.webhdfs)
    folder = f"{stage.staging_of(lake.folder)}/{transaction().name}/data"

    def make(number: int) -> None:
        cluster.create(f"{folder}/day={number % 2}/part-{number:05d}.jsonl", f'{{"n": {number}}}\n'.encode())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, range(count)))
    files = stage.prepare_files(sink.config, transaction(), sink._file_system, lake.folder, folder, count)
    return {
        **{"kind": "files", "target": lake.folder, "format": "json", "txn": transaction().name},
        **{"folder": folder, "manifest": manifest_path(transaction()), "rows": count, "bytes": 1},
        "files": [file.to_json() for file in files],
    }


# ---- what HDFS itself promises, and fsspec does not


def test_a_rename_never_goes_over_a_file_nor_into_a_folder(lake: Lake) -> None:
    cluster = WebHdfsCluster(lake.folder, lake.hdfs.webhdfs)
    mine, theirs, place = (f"{lake.folder}/{name}" for name in ("mine", "theirs", "place"))
    cluster.create(mine, b"mine")
    cluster.create(theirs, b"theirs")
    lake.hdfs.fs.mkdir(lake.path("place"))

    lake.hdfs.fs.mv(lake.path("mine"), lake.path("theirs"))  # not done, and nothing is said
    assert lake.hdfs.fs.exists(lake.path("mine"))
    lake.hdfs.fs.mv(lake.path("mine"), lake.path("place"))
    assert lake.hdfs.fs.exists(lake.path("place/mine"))
    lake.hdfs.fs.mv(lake.path("place/mine"), lake.path("mine"))

    with pytest.raises(FileExistsError):
        cluster.rename(mine, theirs)
    with pytest.raises(OSError, match="must both be directories"):
        cluster.rename(mine, place)
    for source, target in ((f"{mine}-not", f"{mine}-new"), (f"{mine}-not", theirs), (mine, f"{lake.folder}/no/mine")):
        with pytest.raises(FileNotFoundError):
            cluster.rename(source, target)
    assert lake.hdfs.fs.cat_file(lake.path("theirs")) == b"theirs"
    assert lake.hdfs.fs.ls(lake.path("place")) == []


def test_a_file_is_made_once_and_its_checksum_outlives_a_rename(lake: Lake) -> None:
    cluster, on = WebHdfsCluster(lake.folder, lake.hdfs.webhdfs), lake.sink()._file_system
    odd, new = f"{lake.folder}/place=a%2Fb +ü#?&;", f"{lake.folder}/%25=#?"
    cluster.create(odd, b"content")
    with pytest.raises(FileExistsError):
        cluster.create(odd, b"another")
    before = on.read_fingerprint(odd)
    cluster.rename(odd, new)
    assert on.read_fingerprint(new) == before
    assert (before.bytes, before.algorithm) == (7, "MD5-of-0MD5-of-512CRC32C")
    assert on.read(new) == "content"
    cluster.create(odd, b"CONTENT")
    assert on.read_fingerprint(odd) != before


# ---- what a reader finds


@pytest.mark.parametrize("kind", ["parquet", "json", "csv", "avro"])
def test_each_format_is_looked_at_while_staged_and_read_back(lake: Lake, spark: Any, kind: str) -> None:
    rows = [(1, 'say "no", or', "a/b"), (2, "two\nlines", None), (3, "ü \\ ,", "c +%#")]
    frame = spark.createDataFrame(rows, "n INT, text STRING, place STRING").coalesce(1)
    handle, sink = lake.stage(frame, format=kind, partition_by=["place"]), lake.sink(format=kind)
    assert lake.beside() == [".lake.staged"]
    if kind != "avro":
        seen = sink.read_staged(handle).read_all().select(["n", "text", "place"])
        assert sorted(tuple(row.values()) for row in seen.to_pylist()) == rows
    on_spark = sink.staged_frame(handle, spark).selectExpr("CAST(n AS INT)", "text", "place").collect()
    assert sorted(map(tuple, on_spark)) == rows

    assert lake.commit(handle) is False
    options = row_files.OPTIONS.get(kind, {}) | gate_view.GUESS.get(kind, {})
    found = spark.read.format(kind).options(**options).load(lake.folder)
    assert sorted(map(tuple, found.selectExpr("CAST(n AS INT)", "text", "place").collect())) == rows
    if kind in ("parquet", "json"):
        table = manifests.dataset(lake.folder).to_table().select(["n", "text", "place"])
        assert sorted(tuple(row.values()) for row in table.to_pylist()) == rows
    assert len(manifests.files(lake.folder)) == 3
    by_manifest = spark.read.format(kind).options(**options).load(manifests.files(lake.folder))
    assert by_manifest.count() == 3


def test_no_rows_make_no_file_but_a_manifest(lake: Lake, spark: Any) -> None:
    handle = lake.stage(spark.range(0))
    assert [lake.commit(handle), lake.commit(handle)] == [False, True]
    assert (lake.names(), manifests.files(lake.folder)) == ([], [])


def test_no_folder_is_said_to_readers(lake: Lake) -> None:
    with pytest.raises(FileNotFoundError):
        manifests.files(lake.folder)


def test_a_manifest_says_what_each_file_is(lake: Lake) -> None:
    handle = staged_by_hand(lake, 1)
    lake.commit(handle)
    [listed] = json.loads(lake.hdfs.fs.cat_file(lake.path(handle["manifest"])))["files"]
    checksum = lake.hdfs.fs.ukey(lake.path(listed["path"]))
    assert listed == {"path": handle["files"][0]["final"], "bytes": 9, checksum["algorithm"]: checksum["bytes"]}


# ---- published in the place of others, and taken back


def test_a_new_checkpoint_takes_the_place_of_an_old_one_and_is_taken_back(lake: Lake, spark: Any) -> None:
    numbers = spark.range(4).selectExpr("CAST(id AS INT) AS n")
    old, kept = lake.stage(numbers, 1, format="json"), lake.stage(numbers.selectExpr("n + 10 AS n"), 2, format="json")
    lake.commit(old)
    lake.commit(kept)
    new = {**lake.stage(numbers.selectExpr("n + 100 AS n"), 3, format="json"), "replaces": old}
    lake.sink().check_replace(old)
    lake.commit(new)
    assert lake.numbers() == [10, 11, 12, 13, 100, 101, 102, 103]
    assert sorted(manifests.files(lake.folder)) == sorted(f"{lake.folder}/{name}" for name in lake.names())
    with raises(InvalidPipeline, "replaced-files-missing", match="cannot be replaced"):
        lake.sink().check_replace(old)
    back = lake.sink(format="json").retraction(transaction(4), [new, kept], None)
    assert [lake.commit(back), lake.commit(back)] == [False, True]
    assert (lake.names(), manifests.files(lake.folder)) == ([], [])


def test_what_a_killed_stage_left_is_found_and_removed(lake: Lake, spark: Any) -> None:
    lake.stage(spark.range(3), 1)
    lake.stage(spark.range(3), 2)
    prefix = transaction().prefix
    assert lake.sink().leftovers(prefix) == [transaction(1), transaction(2)]
    for txn in lake.sink().leftovers(prefix):
        lake.sink().discard(txn, None)
    assert lake.beside() == []


# ---- killed, and several at once


def test_killed_after_any_request(lake: Lake, tmp_path: Path) -> None:
    lakes = [Lake(lake.hdfs, f"{lake.folder}/{number}") for number in range(LAKES)]
    handles = [staged_by_hand(each, 3) for each in lakes]
    (tmp_path / "handles").write_text(json.dumps(handles))
    command = [sys.executable, mortal_hdfs.__file__, str(tmp_path / "handles"), lake.hdfs.webhdfs]
    path = {"PYTHONPATH": str(Path(mortal_hdfs.__file__).parents[2])}
    done = subprocess.run(
        command, env={**path}, capture_output=True, text=True, start_new_session=True, timeout=PATIENCE
    )
    ends = [int(line) for line in done.stdout.split()]
    killed = ends.count(-signal.SIGKILL)
    assert ends == [-signal.SIGKILL] * killed + [0] * (LAKES - killed), done.stderr
    assert 12 <= killed < LAKES
    moved = {len(each.names()) for each in lakes if each.hdfs.fs.exists(each.path(""))}
    assert {1, 2, 3} <= moved, "some were killed between two moves"
    for each, handle, end in zip(lakes, handles, ends, strict=True):
        listed = manifests.files(each.folder) if each.hdfs.fs.exists(each.path("")) else []
        assert len(listed) == 3 or (end and not listed)  # nothing, as long as it is not all
        was_done = bool(listed)
        assert each.commit(handle) is was_done
        assert each.commit(handle) is True
        assert each.numbers() == [0, 1, 2]
        assert len(manifests.files(each.folder)) == 3
        each.sink().release(transaction())
        assert not each.hdfs.fs.exists(stage.staging_of(each.folder).removeprefix(each.hdfs.root))


def commit_elsewhere(lake: Lake, handle: Handle) -> bool:
    return lake.commit(handle)


def test_two_committers_at_once(lake: Lake, spark: Any) -> None:
    handle = staged_by_hand(lake, 40)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        assert sorted(pool.map(commit_elsewhere, [lake] * 2, [handle] * 2)) == [False, True]
    assert lake.numbers() == list(range(40))
    assert sorted(row["n"] for row in spark.read.json(lake.folder).collect()) == list(range(40))
    assert sorted(manifests.files(lake.folder)) == [f"{lake.folder}/{name}" for name in lake.names()]


# ---- what is refused


def test_a_file_of_somebody_else_is_never_overwritten(lake: Lake) -> None:
    handle = staged_by_hand(lake, 8)
    theirs = f"{lake.folder}/{handle['files'][3]['final']}"
    WebHdfsCluster(lake.folder, lake.hdfs.webhdfs).create(theirs, b'{"n": 3}\t')  # of the same size
    with pytest.raises(CannotPublish) as refused:
        lake.commit(handle)
    assert theirs in refused.value.why
    assert "--give-up lake" in refused.value.todo
    assert lake.hdfs.fs.cat_file(theirs.removeprefix(lake.hdfs.root)) == b'{"n": 3}\t'
    assert manifests.files(lake.folder) == []
    lake.hdfs.fs.rm(theirs.removeprefix(lake.hdfs.root))
    assert lake.commit(handle) is False
    assert lake.numbers() == list(range(8))


def test_nothing_is_moved_into_a_folder_that_has_a_final_name(lake: Lake) -> None:
    handle = staged_by_hand(lake, 2)
    theirs = lake.path(handle["files"][0]["final"])
    lake.hdfs.fs.mkdir(theirs)
    with raises(CannotPublish, "name-taken", match="the folder"):
        lake.commit(handle)
    assert lake.hdfs.fs.ls(theirs) == []


def test_a_manifest_of_somebody_else_is_never_overwritten(lake: Lake) -> None:
    handle = staged_by_hand(lake, 2)
    WebHdfsCluster(lake.folder, lake.hdfs.webhdfs).create(f"{lake.folder}/{handle['manifest']}", b'{"txn": "theirs"}')
    with raises(CannotPublish, "name-taken", match="with other content"):
        lake.commit(handle)
    assert lake.hdfs.fs.cat_file(lake.path(handle["manifest"])) == b'{"txn": "theirs"}'


def test_a_staged_file_that_is_gone_is_not_taken_for_moved(lake: Lake) -> None:
    handle = staged_by_hand(lake, 2)
    lake.hdfs.fs.rm(f"{handle['folder']}/{handle['files'][0]['staged']}".removeprefix(lake.hdfs.root))
    with raises(CannotPublish, "staged-files-missing", match="a staged file no longer exists"):
        lake.commit(handle)
    assert manifests.files(lake.folder) == []


def test_a_target_that_is_something_else_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = WebHdfsCluster(lake.folder, lake.hdfs.webhdfs)
    cluster.create(f"{lake.folder}/file", b"")
    cluster.create(f"{lake.folder}/table/_delta_log/0.json", b"")
    cluster.create(f"{lake.folder}/query/_spark_metadata/0", b"v1")
    things = {"file": "is not a folder", "file/below": "is not a folder", "table": "is a Delta table"}
    for name, why in {**things, "query": "is written by a Structured Streaming query"}.items():
        with pytest.raises(InvalidPipeline) as refused:
            Lake(lake.hdfs, f"{lake.folder}/{name}").sink().check()
        assert why in refused.value.why
    monkeypatch.setenv("HADOOP_USER_NAME", "joe")
    with pytest.raises(InvalidPipeline) as refused:
        lake.sink().check()
    assert "user=joe" in refused.value.why
    assert "'joe'" in refused.value.todo


@pytest.mark.parametrize(("own", "says"), [({}, "renameoptions"), ({"renameoptions": "OVERWRITE"}, "overwrites")])
def test_a_gateway_that_renames_in_its_own_way_is_refused_before_any_row(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, own: dict[str, str], says: str
) -> None:
    whole = WebHdfsCluster.request

    def deaf(self: WebHdfsCluster, method: str, op: str, path: str, **options: Any) -> Any:
        if options.pop("renameoptions", None):
            options |= own
        return whole(self, method, op, path, **options)

    monkeypatch.setattr(WebHdfsCluster, "request", deaf)
    rows = SimpleNamespace(columns=["n"], schema=SimpleNamespace(fields=[]))
    with pytest.raises(InvalidPipeline) as refused:
        lake.stage(rows)
    assert "cannot rename a file atomically" in refused.value.why
    assert says in refused.value.why
    lake.sink().discard(transaction(), None)
    assert lake.beside() == []


def test_a_name_node_that_does_not_answer_is_said_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceonly.storage.hdfs.CONNECT_TIMEOUT_SECONDS", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for listens in (False, True):
            if listens:
                silent.listen()
            began = time.monotonic()
            with pytest.raises(NotCommitted) as refused:
                writer("hdfs://name:8020/lake", address).check()
            assert time.monotonic() - began < PATIENCE
            assert address in refused.value.why
            assert "ONCEONLY_WEBHDFS" in refused.value.todo


def test_what_is_no_name_node_is_said_too(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = requests.Response()
    answer.status_code, answer.url = 404, "http://name:80/"
    monkeypatch.setattr(HTTPAdapter, "send", lambda *_, **__: answer)
    with raises(NotCommitted, "store-unreachable", match="returned 404"):
        writer("hdfs://name:8020/lake", "http://name:80").check()


def test_a_commit_without_a_name_node_is_left_to_recovery(lake: Lake) -> None:
    handle = staged_by_hand(lake, 2)
    gone = writer(lake.folder, "http://127.0.0.1:9")
    with raises(OutcomeUnknown, "no-answer", match="does not answer") as unknown:
        gone.commit(handle, 1, FakeReceipts(Path("unused")))
    assert "http://127.0.0.1:9" in unknown.value.why
    assert "onceonly recover" in unknown.value.todo
    assert lake.commit(handle) is False


def test_rows_that_spark_wrote_to_another_cluster_are_missed(lake: Lake) -> None:
    """As when ONCEONLY_WEBHDFS is of one cluster and hdfs:// of another."""
    folder = f"{stage.staging_of(lake.folder)}/{transaction().name}/data"
    lake.hdfs.fs.mkdir(folder.removeprefix(lake.hdfs.root))
    with raises(NotCommitted, "storage-not-shared", match="no file is there"):
        stage.prepare_files(
            FileSink("lake", lake.folder), transaction(), lake.sink()._file_system, lake.folder, folder, 3
        )
