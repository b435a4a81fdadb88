"""What may be deleted, and which names out of a handle are taken for ours."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from codes import raises

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.transaction_names import file_stem, manifest_path, parse_transaction
from onceonly.errors import CannotPublish, InvalidPipeline
from onceonly.sinks.delta import staged_folders
from onceonly.sinks.staging.handles import check_file, check_folder
from onceonly.storage import own_paths
from onceonly.storage.folders import Folders
from onceonly.storage.own_paths import OwnPath

pytestmark = pytest.mark.slow

TXN = Transaction("0123456789abcdef0123456789abcdef", "flights", "lake", 7, 1, "0a1b2c3d4e5f")
STEM = "flights-lake-000007-01234567"
OWN = [
    TXN.name,
    f"staged-{TXN.name}",
    f"staged-{TXN.name}/merge-0a1b2c3d4e5f/_delta_log",
    f".{TXN.name}",
    f"{TXN.name}/changes",
    f"{TXN.name}/data/place=a%2Fb/part-00000.parquet",
    f"{STEM}-00000.parquet",
    f"place=a%2Fb/{STEM}-00000.jsonl",
    f"_onceonly/{STEM}.manifest",
]
FOREIGN = [
    "",
    ".",
    "..",
    "/",
    f"/{TXN.name}",
    f"../{TXN.name}",
    f"{TXN.name}/..",
    f"{TXN.name}/../../victim",
    f"{TXN.name}//data",
    f"{TXN.name}/",
    f"./{TXN.name}",
    f"{TXN.name}\0",
    f"place=a/{TXN.name}",
    "changes",
    "_onceonly",
    "_onceonly/other.manifest",
    f"_onceonly/../{STEM}.manifest",
    f"../{STEM}-00000.parquet",
    f"_onceonly/{STEM}-00000.parquet",
    "part-00000.parquet",
    "0-..-lake-7-1-abc",
    "0-flights-lake-7-1-",
    "0-flights-lake-07-1-abc",
    "0-flights-lake-7-1-%2e%2e",
]


def test_names_of_ours_are_known() -> None:
    assert [OwnPath("/lake/", name).path for name in OWN] == [f"/lake/{name}" for name in OWN]
    assert parse_transaction(TXN.name) == TXN
    assert (file_stem(TXN), manifest_path(TXN)) == (STEM, f"_onceonly/{STEM}.manifest")


@pytest.mark.parametrize("name", FOREIGN)
def test_nothing_else_is_deleted(tmp_path: Path, name: str) -> None:
    root = tmp_path / "state"
    (root / TXN.name).mkdir(parents=True)
    (tmp_path / "victim").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for delete in (Folders(str(root)).delete, lambda folder: staged_folders.delete(str(root), folder)):
        with raises(InvalidPipeline, "handle-damaged"):
            delete(name)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("root", ["", "/", "//"])
def test_nothing_is_deleted_at_the_root_of_everything(root: str) -> None:
    with raises(InvalidPipeline, "handle-damaged"):
        OwnPath(root, TXN.name)


def test_a_name_is_no_escape_in_a_uri(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    folders = Folders((tmp_path / "state").as_uri())
    folders.delete(f"{TXN.name}/%2e%2e/%2e%2e/victim")
    assert victim.exists()


def test_a_delta_handle_names_a_staged_folder_and_a_kafka_handle_a_file_of_its_own() -> None:
    check_folder("lake", f"staged-{TXN.name}", "staged-")
    check_file("lake", "0-0a1b2c.parquet")
    for folder in (TXN.name, "staged-", "day=2013-01-01", f"staged-{TXN.name}/..", None):
        with raises(CannotPublish, "handle-damaged"):
            check_folder("lake", folder, "staged-")
    for file in ("../x.parquet", "/x.parquet", "", "a/b", None):
        with raises(CannotPublish, "handle-damaged"):
            check_file("lake", file)


# ---- every deletion in the sources

DELETES = {"rmtree", "delete_dir", "delete_dir_contents", "delete_root_dir_contents", "delete_file"}
DELETES |= {"unlink", "rmdir", "rm", "rm_file", "removedirs", "vacuum"}
BY_OWN_PATH = {
    "storage/folders.py delete",
    "storage/local.py remove",
    "storage/folders.py check_mark",
    "storage/hdfs.py remove",
    "storage/hdfs.py delete",
    "storage/object_files.py remove",
    "storage/object_files.py delete",
    "storage/copies.py delete",
    "storage/folders.py _delete_on_google",
    "sinks/delta/staged_folders.py _delete",
    "sinks/delta/staged_folders.py _settle_stored",
}
OTHERWISE = {
    "storage/local.py remove_empty",  # nothing is in it
    "storage/hdfs.py remove_empty",
    "runtime/job_report.py _delete",  # of a stage job: named by the task that reads it
    "gate/docs.py delete_pages",  # of an examination that has just been made
    "testing/fake_sink.py discard",
    "dev/services/spark.py _draw_token",  # of the server before
    "dev/services/daemon.py _stop",  # its own record
    "dev/services/__init__.py down",
    "storage/durability.py write",  # a draft of its own
    "storage/objects.py clear",  # of a folder that is given by OwnPath
    "storage/arbitration.py _try_publishers",  # of a trial that has just been made
    "storage/arbitration.py _check_ended",
    "storage/arbitration.py _remove_trial",  # of a trial that has just been made
    "statetable/row_files.py remove",  # a row's file of its own, which no entry of the log has come to name
    "statetable/compaction.py list_obsolete",  # asks for names
    "statetable/compaction.py _shorten_log",  # merged files that no version names which is kept for readers
    "statetable/compaction.py _create_checkpoint",  # the same, on a disk
    "statetable/compaction.py _make_checkpoint",  # the same, on an object store
    "statetable/compaction.py _remove_old",  # entries of the log that no reader looks at
    "statetable/local_log.py commit",  # a draft of its own
    "delta/commits.py _create_file",  # the same, beside the entries of a table's log
    "spark/jars/__init__.py _delete_outdated",  # other revisions of the jars that it has just fetched
    "spark/jvm.py _delete_others",  # archives of other jars, beside the one that it has just made
    "storage/write_probe.py _write_unnamed_file",  # a name with a random number, which it has just created
    "storage/write_probe.py _probe_store",  # the one name that all checks use, and nothing else
    "sinks/kafka/spool.py take_file",  # receipts, under a random name that this process has given
    "probe/places.py create",  # a draft with a random name, which it has just created
    "probe/places.py remove",  # an entry of the probe's own folder
    "probe/places.py remove_folder",  # the folder of a probe, whose name `require_name` checks
    "dev/chaos/run.py main",  # parts of a folder that it has created
    "dev/chaos/faults.py _fill_disk",  # what fills its own disk
    "dev/chaos/faults.py _take_back",  # its own copy of a table
    "dev/chaos/faults.py _exchange",
    "dev/demo/run.py clear",  # the demo's own folder
    "dev/demo/run.py _kill_after_decision",
}


def deletions() -> Iterator[tuple[str, str]]:
    """ "file function" of each call that deletes, and the function's source."""
    root = Path(own_paths.__file__).parents[1]
    for file in sorted(root.rglob("*.py")):
        source = file.read_text()
        tree = ast.parse(source)
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if _deletes(call.func):
                around = [f for f in functions if f.lineno <= call.lineno <= (f.end_lineno or 0)]
                inner = max(around, key=lambda f: f.lineno, default=None)
                name = inner.name if inner else "(module)"
                yield f"{file.relative_to(root)} {name}", ast.get_source_segment(source, inner or tree) or ""


def _deletes(called: ast.expr) -> bool:
    if isinstance(called, ast.Name):
        return called.id in DELETES
    if not isinstance(called, ast.Attribute):
        return False
    of_os = isinstance(called.value, ast.Name) and called.value.id == "os"
    return called.attr in DELETES or (of_os and called.attr == "remove")


def test_every_deletion_goes_by_a_name_of_ours() -> None:
    found = dict(deletions())
    assert set(found) == BY_OWN_PATH | OTHERWISE
    assert [name for name in BY_OWN_PATH if "OwnPath" not in found[name]] == []
