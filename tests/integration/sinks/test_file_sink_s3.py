"""What the file sink and the file source do on a real S3 server; rows are staged without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from integration.faults.s3_proxy import Always, Fault, Proxy, Request, Rule, proxy
from integration.projects.light_stores import LightStoreFiles, Store
from integration.projects.store_lake import StoreLake, transaction
from integration.services.s3 import BUCKET, S3

from onceonly.checkpoint.sink import Publication
from onceonly.checkpoint.transaction_names import manifest_path
from onceonly.errors import CannotPublish, Fenced, InvalidPipeline, NotCommitted, OutcomeUnknown
from onceonly.pipeline.sources import FileSource
from onceonly.sinks.files import moves
from onceonly.sinks.files.handle import StagedFile, staging_of
from onceonly.sinks.files.sink import FileWriter
from onceonly.sources.files import FileReader
from onceonly.storage import arbitration, manifests, s3, s3_client
from onceonly.storage.interface import PreparedFile
from onceonly.storage.own_paths import OwnPath
from onceonly.storage.s3 import S3Files
from onceonly.storage.s3_client import Bucket
from onceonly.testing.fakes import FakeReceipts

pytestmark = pytest.mark.integration
numbers = count()
MB = 1024 * 1024


@dataclass(frozen=True)
class Lake(StoreLake):
    @property
    def files(self) -> S3Files:
        return S3Files(Bucket(BUCKET))

    @property
    def store(self) -> Store:
        return Store(BUCKET)

    def put(self, key: str, text: str) -> None:
        self.store.client.put_object(Bucket=BUCKET, Key=key, Body=text.encode())


@pytest.fixture
def lake(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Lake:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return Lake(f"s3://{BUCKET}", f"files-{next(numbers)}")


@pytest.fixture
def between(s3: S3, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with proxy(s3) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


# ---- what is believed


def test_an_answer_is_no_evidence(lake: Lake) -> None:
    """A store may say of an upload that it does not know that it has completed it, if any object is there."""
    handle = lake.stage(1, 1, 2)
    lake.store.abort_all(f"{lake.name}/")
    lake.put(lake.key(handle), "another's")
    with raises(CannotPublish, "name-taken", match="another file already has the name"):
        lake.commit(handle)
    assert lake.listed() == [] and lake.store.text(lake.key(handle)) == "another's"
    lake.store.client.delete_object(Bucket=BUCKET, Key=lake.key(handle))
    assert not lake.commit(handle).already and lake.numbers() == lake.listed() == [1, 2]


def test_a_staged_copy_that_was_changed_is_not_published(lake: Lake) -> None:
    handle = lake.stage(1, 1, 2)
    lake.store.abort_all(f"{lake.name}/")
    lake.put(f"{handle['folder']}/{handle['files'][0]['staged']}".removeprefix(f"s3://{BUCKET}/"), '{"n": 7}\n')
    with raises(CannotPublish, "staged-files-missing", match="is not the file that was staged"):
        lake.commit(handle)
    assert lake.listed() == []


def test_a_file_of_many_parts_and_an_empty_one_arrive_whole(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "PART_BYTES", 5 * MB)
    folder, on = OwnPath(staging_of(lake.uri), transaction().name), lake.files
    for name, text in (("big", "0123456789abcdef" * (13 * MB // 16)), ("empty", "")):
        staged, final = folder.join(f"data/{name}"), f"{lake.uri}/{name}"
        on.write(staged.path, text)
        ready = on.prepare(staged.path, final)
        assert len(ready.upload.parts) == (3 if text else 1)  # type: ignore[union-attr]
        assert on.find_size(final) is None
        on.move(staged, final, ready)
        on.move(staged, final, ready)  # it is there, and it is this one
        assert on.read(final) == text and on.read_fingerprint(final) == ready.fingerprint
        with pytest.raises(FileExistsError):
            on.move(staged, final)


def test_who_answers_in_place_of_the_store_tells_nothing_about_a_file(lake: Lake, between: Proxy) -> None:
    handle = lake.stage(1, 1, 2)
    between.let(Always(Fault.NO_SERVER))
    with raises(OutcomeUnknown, "no-answer", match="publishing again is safe"):
        lake.commit(handle)
    with raises(OutcomeUnknown, "no-answer", match="publishing again is safe"):
        lake.sink.fence(handle, 1)
    between.let(Rule())
    assert not lake.commit(handle).already and lake.numbers() == lake.listed() == [1, 2]


@dataclass
class OneHeld(Rule):
    """The answer to the first object that gets its name does not come."""

    came: bool = False

    def fault(self, request: Request) -> Fault | None:
        if self.came or not request.conditional:
            return None
        self.came = True
        return Fault.HELD


def test_who_waits_in_vain_for_an_answer_asks_again(
    lake: Lake, between: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = lake.stage(1, 1, 2)
    monkeypatch.setattr(s3_client, "RESPONSE_TIMEOUT_SECONDS", 5.0)
    s3_client._client.cache_clear()
    between.let(OneHeld())
    assert not lake.commit(handle).already
    assert lake.numbers() == lake.listed() == [1, 2]
    s3_client._client.cache_clear()


class Changing(Bucket):
    """Somebody overwrites an object after it was looked at, and before the store copies it."""

    def __init__(self, uri: str) -> None:
        super().__init__(BUCKET)
        self.uri = uri

    def ask(self, operation: str, **given: Any) -> Any:
        if operation == "upload_part_copy" and given["CopySource"]["Key"] == self.key(self.uri):
            super().ask("put_object", Key=self.key(self.uri), Body=b"another's")
        return super().ask(operation, **given)


def test_a_file_that_is_changed_while_it_is_set_aside_is_not_lost(lake: Lake) -> None:
    handle = lake.stage(1, 1)
    staged = OwnPath(staging_of(lake.uri), transaction().name)
    uri = f"{handle['folder']}/{handle['files'][0]['staged']}"
    with pytest.raises(OSError):
        S3Files(Changing(uri)).rename_folder(staged.join("data"), staged.join("given-up"))
    assert lake.files.read(uri) == "another's"


def test_a_file_of_another_is_not_taken_back(lake: Lake) -> None:
    handle = lake.stage(1, 1)
    file = StagedFile.from_json(handle["files"][0])
    staged = OwnPath(staging_of(lake.uri), transaction().name)
    moves.move(lake.files, [file], staged.join("data"), lake.uri)
    final = f"{lake.uri}/{file.final}"
    moves.move_back(S3Files(Changing(final)), [file], staged.join("kept"), lake.uri)
    assert lake.files.read(final) == "another's"


# ---- a process that hangs, and wakes up late


class Late(Bucket):
    """Of a process that hangs before it completes an upload, and meanwhile others do what they do."""

    def __init__(self, others: Any, of: str = "", but: Iterable[str] = ()) -> None:
        super().__init__(BUCKET)
        self.others, self.of, self.but = others, of, set(but)

    def ask(self, operation: str, **given: Any) -> Any:
        completes = operation == "complete_multipart_upload" and given["UploadId"] not in self.but
        if completes and self.of in given["Key"] and self.others:
            others, self.others = self.others, None
            others()
        return super().ask(operation, **given)


def late(lake: Lake, others: Any, of: str = "", but: Iterable[str] = ()) -> FileWriter:
    sink = lake.sink
    sink.__dict__["_location"] = S3Files(Late(others, of, but)), lake.uri
    return sink


@pytest.mark.parametrize("of", [".jsonl", ".manifest"])
@pytest.mark.parametrize("expired", [False, True])
def test_who_wakes_up_after_its_rows_were_replaced_publishes_nothing(lake: Lake, of: str, expired: bool) -> None:
    """The names of its files and of its manifest are free again by then."""
    handle = lake.stage(1, 1, 2)
    if expired:
        lake.store.abort_all(f"{lake.name}/")

    def others() -> None:
        lake.commit(handle)
        new = {**lake.stage(2, 3, 4), "replaces": {"manifest": handle["manifest"], "files": handle["files"]}}
        lake.commit(new, 2)  # before the first one is released, which may be late

    with pytest.raises((CannotPublish, OutcomeUnknown)):
        late(lake, others, of).commit(handle, 1, FakeReceipts(Path("unused")))
    assert lake.numbers() == lake.listed() == [3, 4]
    assert manifest_path(transaction(1)) not in str(lake.store.keys(lake.name))


def test_of_two_that_make_an_expired_upload_again_one_publishes(lake: Lake) -> None:
    handle = lake.stage(1, 1, 2)
    lake.store.abort_all(f"{lake.name}/")
    staged = [file["upload"]["id"] for file in handle["files"]]
    hanging = late(lake, lambda: lake.commit(handle), ".jsonl", staged)
    assert hanging.commit(handle, 1, FakeReceipts(Path("unused"))).already
    assert lake.numbers() == lake.listed() == [1, 2] and lake.store.uploads(lake.name) == []


@pytest.mark.parametrize("expired", [False, True])
def test_who_wakes_up_after_it_was_given_up_publishes_nothing(lake: Lake, expired: bool) -> None:
    """Not even the one file that it was about to publish, should it be killed right after that."""
    handle = lake.stage(1, 1, 2)
    if expired:
        lake.store.abort_all(f"{lake.name}/")
    file = StagedFile.from_json(handle["files"][0])
    staged = OwnPath(staging_of(lake.uri), transaction().name).join(f"data/{file.staged}")
    on = S3Files(Late(lambda: lake.sink.fence(handle, 1)))
    with pytest.raises(FileNotFoundError):
        on.move(staged, f"{lake.uri}/{file.final}", PreparedFile(file.fingerprint, file.upload))
    assert lake.numbers() == []
    with raises(Fenced, "sink-given-up", match="given up"):
        lake.commit(handle)
    kept = [key for key in lake.store.keys(f"{lake.name}/.lake.staged/") if "/given-up/" in key]
    assert len(kept) == 2 and lake.numbers() == lake.listed() == []


def test_what_was_published_before_it_was_given_up_is_taken_back(lake: Lake) -> None:
    handle = lake.stage(1, 1, 2)
    file = StagedFile.from_json(handle["files"][0])
    staged = OwnPath(staging_of(lake.uri), transaction().name).join("data")
    moves.move(lake.files, [file], staged, lake.uri)
    assert len(lake.numbers()) == 1
    assert lake.sink.fence(handle, 1) is None and lake.sink.fence(handle, 1) is None
    assert lake.numbers() == lake.listed() == [] and lake.store.uploads(lake.name) == []


class Ending(Bucket):
    """Another process ends an upload as soon as it has been begun, so many times."""

    def __init__(self, times: int) -> None:
        super().__init__(BUCKET)
        self.times = times

    def ask(self, operation: str, **given: Any) -> Any:
        if operation == "upload_part_copy" and self.times:
            self.times -= 1
            super().ask("abort_multipart_upload", Key=given["Key"], UploadId=given["UploadId"])
        return super().ask(operation, **given)


@pytest.mark.parametrize("times", [1, 100])
def test_rows_are_kept_though_others_end_each_upload(lake: Lake, times: int) -> None:
    handle, sink = lake.stage(1, 1, 2), lake.sink
    sink.__dict__["_location"] = S3Files(Ending(times)), lake.uri
    if times == 1:
        assert sink.fence(handle, 1) is None
    else:
        with raises(OutcomeUnknown, "no-answer", match="publishing again is safe"):
            sink.fence(handle, 1)
    kept = [key for key in lake.store.keys(f"{lake.name}/.lake.staged/") if key.endswith(".jsonl")]
    assert {"/given-up/" in key for key in kept} == {times == 1} and len(kept) == 2
    assert lake.sink.fence(handle, 1) is None and lake.numbers() == []


def test_an_upload_that_is_ended_while_it_is_made_again_is_made_once_more(lake: Lake) -> None:
    handle, sink = lake.stage(1, 1, 2), lake.sink
    lake.store.abort_all(f"{lake.name}/")
    sink.__dict__["_location"] = S3Files(Ending(1)), lake.uri
    sink.commit(handle, 1, FakeReceipts(Path("unused")))
    assert lake.numbers() == lake.listed() == [1, 2]


# ---- replacing, taking back, clearing up


def test_readers_by_manifest_see_the_old_rows_or_the_new_ones(lake: Lake) -> None:
    first = lake.stage(1, 1, 2)
    lake.commit(first)
    lake.sink.check_replace(first)
    lake.commit({**lake.stage(2, 3), "replaces": {"manifest": first["manifest"], "files": first["files"]}}, 2)
    assert lake.numbers() == lake.listed() == [3]
    back = json.loads(json.dumps(lake.sink.retraction(transaction(3), [lake.stage(2, 3)], None)))
    lake.commit(back, 3)
    assert lake.numbers() == lake.listed() == []
    with raises(InvalidPipeline, "replaced-files-missing", match="cannot be replaced"):
        lake.sink.check_replace(first)


def test_an_attempt_that_is_discarded_leaves_no_upload(lake: Lake) -> None:
    lake.stage(1, 1, 2)
    lake.stage(2, 3, 4)
    key = f"{lake.name}/.lake.staged/{transaction(1).name}/data/part-1.parquet"  # of a task of Spark
    lake.store.client.create_multipart_upload(Bucket=BUCKET, Key=key)
    assert len(lake.store.uploads(lake.name)) == 5
    assert [txn.epoch for txn in lake.sink.leftovers(transaction().prefix)] == [1, 2]
    lake.sink.discard(transaction(1), None)
    assert {"000002" in key for key, _ in lake.store.uploads(lake.name)} == {True}
    assert [txn.epoch for txn in lake.sink.leftovers(transaction().prefix)] == [2]


def test_what_one_attempt_clears_up_costs_another_no_row(lake: Lake) -> None:
    """Both have the same final names, so the uploads of both may be ended."""
    lake.stage(1, 1, 2)
    handle = lake.stage(1, 1, 2, attempt=2)
    lake.sink.discard(transaction(1), None)
    assert not lake.commit(handle).already
    assert lake.numbers() == lake.listed() == [1, 2]


def test_all_uploads_are_ended_however_many_there_are(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(9):
        lake.store.client.create_multipart_upload(Bucket=BUCKET, Key=f"{lake.name}/lake/part=1/{number // 2}")
    monkeypatch.setattr(s3_client, "MAX_KEYS", 3)
    assert len(set(Bucket(BUCKET).uploads(lake.uri))) == 9
    lake.files.end_uploads(lake.uri, "")
    assert lake.store.uploads(lake.name) == []


# ---- where it cannot be


def test_a_store_that_completes_two_uploads_of_one_name_is_refused(
    lake: Lake, between: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arbitration, "_buckets_that_passed", set())
    between.let(Always(Fault.UNCONDITIONAL))
    with raises(InvalidPipeline, "store-not-arbitrating", match="of them were told that they succeeded"):
        lake.sink.check()
    between.let(Rule())
    assert lake.store.keys(lake.name) == [] and lake.store.uploads(lake.name) == []
    assert lake.sink.check() == [f"lake: moves json files to {lake.uri}"]
    between.let(Rule())
    lake.sink.check()
    assert between.counts == {"GET": 3, "HEAD": 1}, "it is tried once"


def test_a_store_that_does_not_know_the_condition_is_refused_by_what_it_says(
    lake: Lake, between: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arbitration, "_buckets_that_passed", set())
    between.let(Always(Fault.UNKNOWN))
    with raises(InvalidPipeline, "store-not-arbitrating", match="does not know a request: complete_multipart_upload"):
        lake.sink.check()


def test_a_store_whose_uploads_nobody_can_end_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some servers list uploads by their whole name only, not by a folder: giving up would end none."""
    monkeypatch.setattr(arbitration, "_buckets_that_passed", set())
    with monkeypatch.context() as patched:
        patched.setattr(Bucket, "uploads", lambda bucket, folder: iter(()))
        with raises(InvalidPipeline, "store-not-arbitrating", match="was aborted there, and still succeeded"):
            lake.sink.check()
    assert lake.store.keys(lake.name) == []
    lake.store.abort_all(lake.name)
    lake.sink.check()


def test_what_is_no_place_for_files_is_said_before_any_work(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.put(f"{lake.name}/lake", "a file")
    with raises(InvalidPipeline, "target-unsuitable", match="is not a folder"):
        lake.sink.check()
    lake.put(f"{lake.name}/table/_delta_log/00000000000000000000.json", "{}")
    with raises(InvalidPipeline, "target-unsuitable", match="is a Delta table"):
        LightStoreFiles(f"s3://{BUCKET}/{lake.name}/table").check()
    lake.put(f"{lake.name}/table/_delta_log/", "")  # by which S3A marks the folder
    with raises(InvalidPipeline, "target-unsuitable", match="is a Delta table"):
        LightStoreFiles(f"s3://{BUCKET}/{lake.name}/table").check()
    lake.put(f"{lake.name}/query/_spark_metadata/0", "v1")
    with raises(InvalidPipeline, "target-unsuitable", match="is written by a Structured Streaming query"):
        LightStoreFiles(f"s3://{BUCKET}/{lake.name}/query").check()
    with raises(InvalidPipeline, "bucket-missing", match="NoSuchBucket"):
        LightStoreFiles("s3://nowhere/lake").check()
    with raises(InvalidPipeline, "uri-invalid", match="must name a bucket and a folder"):
        LightStoreFiles(f"s3://{BUCKET}").check()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with raises(InvalidPipeline, "target-not-writable", match="SignatureDoesNotMatch") as told:
        lake.sink.check()
    assert "another" not in str(told.value)


def test_a_server_that_is_not_there_is_named(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with raises(NotCommitted, "store-unreachable", match="does not answer"):
        lake.sink.check()
    with raises(NotCommitted, "store-unreachable", match="Invalid bucket name"):
        LightStoreFiles("s3://Lake_!/a").check()


# ---- readers


def test_a_folder_on_s3_is_a_source(lake: Lake) -> None:
    for epoch in (1, 2):
        lake.commit(lake.stage(epoch, epoch), epoch)
    source = FileReader(FileSource(lake.uri.replace("s3:", "s3a:"), name="lake"), lake.uri)
    assert source.log().partitions == {0: (0, 3)}
    assert lake.listed() == sorted(manifests.dataset(lake.uri).to_table()["n"].to_pylist()) == [1, 2]
    assert all(uri.startswith(f"{lake.uri}/part=") for uri in manifests.files(lake.uri.replace("s3:", "s3a:")))


def test_a_checkpoint_costs_few_requests(lake: Lake, between: Proxy) -> None:
    """Without lists while it is published: a commit does not depend on what a list shows."""
    lake.sink.check()
    last = Publication(1, 1, lake.commit(lake.stage(1, 1)).proof)
    sink = LightStoreFiles(lake.uri)
    between.let(Rule())
    handle = sink.stage(transaction(2), [2])
    staged = len(between.seen)
    between.let(Rule())
    sink.rehearse(handle, 2, last)
    rehearsed = len(between.seen)
    between.let(Rule(), delay=0.05)
    sink.commit(handle, 2, FakeReceipts(Path("unused")), last)
    assert (staged, rehearsed, len(between.seen)) == (10, 13, 9)
    assert not [request for request in between.seen if request.method == "GET" and request.query], "no list"
