"""What can be known of HDFS without one: addresses, names, errors. The rest is in tests/integration."""

from __future__ import annotations

import builtins
import json
from typing import Any

import pytest
import requests
from codes import raises

from onceonly.errors import InvalidPipeline
from onceonly.pipeline.sinks import FileSink
from onceonly.settings import Settings
from onceonly.sinks.files import moves, stage
from onceonly.sinks.files.errors import NameTaken
from onceonly.sinks.files.handle import StagedFile
from onceonly.sinks.files.sink import FileWriter
from onceonly.storage.interface import Fingerprint
from onceonly.storage.local import LocalFiles
from onceonly.storage.paths import split_hdfs_uri
from onceonly.storage.webhdfs import WebHdfsCluster, _raise_error


@pytest.mark.parametrize(
    ("given", "address"),
    [
        (None, "http://name:9870"),
        ("http://other", "http://other:9870"),
        ("https://other/", "https://other:9871"),
        ("http://other:50070", "http://other:50070"),
    ],
)
def test_the_name_node_has_the_configured_address_or_hadoops_default(given: str | None, address: str) -> None:
    assert WebHdfsCluster("hdfs://name:8020/lake", given).address == address
    assert Settings.from_env({"ONCEONLY_WEBHDFS": given or ""}).webhdfs == given


def test_for_a_user_id_without_a_name_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HADOOP_USER_NAME", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 1_000_580_000)
    with raises(InvalidPipeline, "hdfs-user-unknown") as refused:
        WebHdfsCluster("hdfs://name:8020/lake")
    assert "1000580000" in refused.value.why and "HADOOP_USER_NAME" in refused.value.todo


@pytest.mark.parametrize(
    "address", ["http://joe:secret@name:9870", "name:9870", "ftp://name", "http://name/secret", "http://name:x"]
)
def test_an_address_that_cannot_be_used_is_not_repeated(address: str) -> None:
    with raises(InvalidPipeline, "uri-invalid") as refused:
        FileWriter(FileSink("lake", "hdfs://name/lake"), "hdfs://name/lake", address).check()
    assert "secret" not in str(refused.value)
    assert "ONCEONLY_WEBHDFS" in refused.value.todo


@pytest.mark.parametrize("uri", ["hdfs:///lake", "hdfs://name", "hdfs://name:8020/", "hdfs://joe:secret@name/lake"])
def test_a_folder_must_be_named_whole(uri: str) -> None:
    with raises(InvalidPipeline, "uri-invalid") as refused:
        split_hdfs_uri(uri)
    assert "secret" not in str(refused.value)


def test_a_path_is_taken_as_hadoop_takes_it() -> None:
    assert split_hdfs_uri("hdfs://name:8020//lake/./a%20b#c?d/") == ("name:8020", "/lake/a%20b#c?d")
    cluster = WebHdfsCluster("hdfs://name:8020/lake")
    assert cluster.path("hdfs://name:8020/lake/x") == "/lake/x"
    for other in ("hdfs://name:80201/lake", "/lake"):
        with pytest.raises(FileNotFoundError):
            cluster.path(other)


def test_the_user_is_hadoops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "joe")
    assert WebHdfsCluster("hdfs://name/lake").fs.pars == {"user.name": "joe"}


@pytest.mark.parametrize(
    ("status", "body", "kind", "says"),
    [
        (404, {"exception": "FileNotFoundException", "message": "no\n\tat x"}, FileNotFoundError, "name:9870: no$"),
        (403, {"exception": "FileAlreadyExistsException", "message": "yes"}, FileExistsError, "yes"),
        (403, {"exception": "AccessControlException", "message": "may not"}, PermissionError, "may not"),
        (403, {"exception": "StandbyException", "message": "asleep"}, OSError, "StandbyException of http://name:9870"),
        (401, None, PermissionError, "returned 401"),
        (502, None, OSError, "returned 502"),
    ],
)
def test_a_refusal_is_the_error_of_a_local_file_system(status: int, body: Any, kind: type[OSError], says: str) -> None:
    answer = requests.Response()
    answer.status_code, answer.url = status, "http://name:9870/webhdfs/v1/lake?user.name=joe&delegation=secret"
    answer._content = json.dumps({"RemoteException": body}).encode() if body else b"<html>"
    with pytest.raises(kind, match=says) as raised:
        _raise_error(answer)
    assert type(raised.value) is kind
    assert "secret" not in str(raised.value)


def test_without_fsspec_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name.startswith("onceonly.storage.webhdfs"):
            raise ModuleNotFoundError("No module named 'fsspec'", name="fsspec")
        return whole(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with raises(InvalidPipeline, "package-missing") as refused:
        stage.file_system_of("lake", "hdfs://name/lake")
    assert "onceonly[hdfs]" in refused.value.todo


def test_a_checksum_goes_by_the_name_of_its_algorithm() -> None:
    file = StagedFile("part-0", "final-0", Fingerprint(3, "MD5-of-0MD5-of-512CRC32C", "00ff"))
    assert file.to_json() == {"staged": "part-0", "final": "final-0", "bytes": 3, "MD5-of-0MD5-of-512CRC32C": "00ff"}
    assert StagedFile.from_json(file.to_json()) == file


def test_checksums_by_two_algorithms_are_no_evidence() -> None:
    class Other(LocalFiles):
        def read_fingerprint(self, path: str) -> Fingerprint:
            return Fingerprint(3, "COMPOSITE-CRC32C", "00ff")

    file = StagedFile("part-0", "final-0", Fingerprint(3, "MD5-of-0MD5-of-512CRC32C", "00ff"))
    with pytest.raises(NameTaken, match="by COMPOSITE-CRC32C, ours is by MD5-of"):
        moves.check_same(Other(), file, "/lake/final-0")
