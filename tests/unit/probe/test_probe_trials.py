"""Each promise of a storage, on a disk that keeps all of them, and on one that breaks it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from codes import raises
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from interruptible import CLI
from patience import PATIENCE
from unit.probe.lying_disks import LIES

from onceonly.cli import main
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.probe import folders, mounts, processes, results, storage
from onceonly.probe.findings import Finding, Verdict
from onceonly.probe.places import DiskPlace, open_place
from onceonly.probe.trials import CLOCKS, measure_difference
from onceonly.probe.workers import OPENER, Job, run_threads
from onceonly.storage.local import LocalFiles

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
WORKERS = 4
PROMISES = [promise.name for promise in storage.list_promises()]


def run(folder: Path, opener: str = OPENER, rounds_of: float = 0) -> dict[str, Finding]:
    """Probe a folder by threads; one round."""
    job = Job(str(folder), folders.make_name(datetime.now(UTC)), WORKERS, rounds_of, opener=opener)
    findings, rounds = storage.probe(job, lambda job: run_threads(job, 0, WORKERS))
    assert rounds >= 1 and [finding.promise.name for finding in findings] == PROMISES
    return {finding.promise.name: finding for finding in findings}


def broken(findings: dict[str, Finding]) -> set[str]:
    return {name for name, finding in findings.items() if finding.verdict is Verdict.BROKEN}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "lake"
    place.mkdir()
    (place / "theirs").write_text("kept")
    return place


@pytest.mark.slow
def test_a_disk_keeps_every_promise(folder: Path) -> None:
    findings = run(folder)
    untried = {name for name, finding in findings.items() if finding.verdict is Verdict.UNTRIED}
    in_memory = mounts.find_objection(mounts.find_mount(str(folder)))
    assert (broken(findings), untried) == ({"durability"} if in_memory else set(), {"conditional-copies"})
    assert [path.name for path in folder.iterdir()] == ["theirs"]


def test_there_is_a_lie_for_every_promise() -> None:
    assert set(LIES) == set(PROMISES)


@pytest.mark.slow
@pytest.mark.parametrize("promise", sorted(LIES))
def test_a_broken_promise_is_seen(promise: str, folder: Path) -> None:
    findings = run(folder, f"unit.probe.lying_disks:{promise.replace('-', '_')}")
    assert promise in broken(findings)
    assert broken(findings) <= {promise, "durability"}  # the second where tests run in memory
    assert [path.name for path in folder.iterdir()] == ["theirs"]


AFTER_WRITING = {"listing-after-writing", "reading-after-writing", "reading-after-overwriting"}
NEEDED = {  # by call: the promises that can only be broken after it was done
    "write": AFTER_WRITING | {"clocks", "whole-contents"},
    "remove": {"listing-after-deleting", "reading-after-deleting"},
    "files.write": {"publication", "withdrawal", "folder-renames"},
    "files.prepare": {"publication", "withdrawal"},
}


@pytest.mark.slow
@pytest.mark.parametrize("refusal", [FileExistsError, FileNotFoundError, ConnectionError])
@pytest.mark.parametrize("call", NEEDED)
def test_a_step_that_was_refused_shows_nothing(
    call: str, refusal: type[OSError], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway was seen that answers a write with 409 or 404 while another one deletes the last file beside it."""

    def refuse(*args: Any) -> None:
        raise refusal("refused")

    owner, name = (LocalFiles, call.partition(".")[2]) if "." in call else (DiskPlace, call)
    monkeypatch.setattr(owner, name, refuse)
    findings = run(folder)
    assert broken(findings) <= {"durability"}
    assert {name for name in NEEDED[call] if findings[name].verdict is Verdict.UNTRIED} == NEEDED[call]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "error", "promise"),
    [
        (DeltaTable, "create", CommitFailedError("a version that already exists"), "delta-commits"),
        (LocalFiles, "move", ConnectionError("no answer"), "withdrawal"),
    ],
    ids=["a table that was not created", "a late publication without an answer"],
)
def test_other_failures_are_no_evidence(
    owner: type, name: str, error: Exception, promise: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise error

    monkeypatch.setattr(owner, name, fail)
    findings = run(folder)
    assert findings[promise].verdict is Verdict.UNTRIED
    assert broken(findings) <= {"durability"}


def test_only_old_folders_of_probes_are_leftovers() -> None:
    old, new = (folders.make_name(NOW - timedelta(minutes=minutes)) for minutes in (121, 119))
    beside = [f"{old}x", f"x{old}", "_onceonly-probe-", "theirs", old[1:]]
    assert folders.list_leftovers([new, old, *beside], NOW) == [old]
    with pytest.raises(ValueError, match="theirs"):
        folders.require_name("theirs")


def test_leftovers_of_a_killed_probe_are_removed(folder: Path) -> None:
    old, new = (folders.make_name(NOW - timedelta(hours=hours)) for hours in (3, 1))
    for name in (old, new):
        (folder / name / "entries").mkdir(parents=True)
        (folder / name / "entries" / "left").write_text("x")
    place = open_place(str(folder), folders.make_name(NOW), None)
    assert storage.remove_leftovers(place, NOW) == [old]
    assert sorted(path.name for path in folder.iterdir()) == sorted([new, "theirs"])


@pytest.mark.parametrize(("changed", "difference"), [(10.5, 0.0), (10.0, 0.0), (9.0, -1.0), (12.5, 1.5)])
def test_a_clock_differs_by_what_no_delay_explains(changed: float, difference: float) -> None:
    """Between 11 and 11 s something was written; a store may show whole seconds."""
    assert measure_difference(changed, 11.0, 11.0) == difference


TABLE = """22 1 0:20 / / rw shared:1 - overlay overlay rw,lowerdir=/a,{options}
23 22 0:21 / /mnt/a\\040b rw - tmpfs tmpfs rw,size=64k
24 22 0:22 / /mnt/nfs rw - nfs4 server:/export rw,vers=4.2
"""


@pytest.mark.parametrize(
    ("folder", "options", "objection"),
    [("/mnt/nfs/x", "", ""), ("/mnt/a b/x", "", "memory"), ("/mnt", "", ""), ("/mnt", "volatile", "volatile")],
)
def test_a_mount_may_speak_against_durability(folder: str, options: str, objection: str, tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE.format(options=options))
    found = mounts.find_objection(mounts.find_mount(folder, table))
    assert objection in found and bool(objection) == bool(found)


# ---- the command


def invoke(*args: object) -> tuple[int, dict[str, object]]:
    result = CliRunner().invoke(main, ["probe", *map(str, args), "--json"])
    return result.exit_code, json.loads(result.stdout)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.slow
def test_the_command_probes_by_processes_and_keeps_the_result(folder: Path, home: Path) -> None:
    code, report = invoke(folder, "--seconds", 0, "--workers", 3)
    in_memory = mounts.find_objection(mounts.find_mount(str(folder)))
    assert (code, report["verdict"]) == ((8, "broken") if in_memory else (0, "kept"))
    assert (report["from"], report["rounds"]) == ("3 processes", 1)
    assert [path.name for path in folder.iterdir()] == ["theirs"]
    place = results.name_storage(str(folder))
    assert results.find(home, place) == report
    assert results.find(home, "s3://elsewhere") is None


def test_a_broken_promise_has_an_exit_code_of_its_own(
    folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probe(job: Job, crew: object) -> tuple[list[Finding], int]:
        return [Finding(CLOCKS, "1 of 1 tries: its clock is 400.0 s ahead of ours", Verdict.BROKEN)], 1

    monkeypatch.setattr(storage, "probe", probe)
    result = CliRunner().invoke(main, ["probe", str(folder)])
    assert result.exit_code == 8
    assert "[promise-broken]" in result.stderr and "400.0 s ahead" in result.stdout


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("ftp://host/folder", "probe-unknown-place"),
        ("s3://key:secret@lake/x", "uri-invalid"),
        ("kafka://user:secret@host:9092", "uri-invalid"),
        ("nowhere/at-all", "probe-folder-missing"),
    ],
)
def test_what_cannot_be_probed_is_refused(url: str, code: str, home: Path, tmp_path: Path) -> None:
    if url.startswith("nowhere"):
        url = f"{tmp_path}/{url}"
    result = CliRunner().invoke(main, ["probe", url, "--json", "--seconds", "0"])
    assert (result.exit_code, json.loads(result.stdout)["code"]) == (2, code)
    assert "secret" not in result.output


def test_a_folder_that_cannot_be_removed_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(place: DiskPlace, name: str) -> None:
        raise PermissionError(name)

    monkeypatch.setattr(DiskPlace, "remove_folder", refuse)
    job = Job(str(folder), folders.make_name(NOW), 1, 0)
    with raises(NotCommitted, "probe-not-removed", "_onceonly-probe-"):
        storage.probe(job, lambda job: {"tallies": {}, "rounds": 0})


def test_a_worker_that_dies_ends_the_probe(folder: Path) -> None:
    job = Job(str(folder), folders.make_name(NOW), 2, 0, opener="unit.probe.dying:open_and_die")
    with raises(NotCommitted, "probe-not-completed"):
        storage.probe(job, lambda job: processes.run_processes(job, lambda progress: None))
    assert [path.name for path in folder.iterdir()] == ["theirs"]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_probe_that_is_ended_leaves_no_process_and_only_what_the_next_removes(
    stop: signal.Signals, folder: Path, home: Path
) -> None:
    command = [*CLI, "probe", str(folder), "--workers", "3"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    try:
        while not list(folder.glob("_onceonly-probe-*/entries/0*")):
            assert process.poll() is None
        process.send_signal(stop)
        process.communicate(timeout=PATIENCE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    left = [path.name for path in folder.iterdir() if path.name != "theirs"]
    if stop is not signal.SIGKILL:
        assert (process.returncode, left) == (130, [])
    else:
        assert folders.list_leftovers(left, datetime.now(UTC) + timedelta(hours=3)) == left
    wait_for_group(process.pid)


def wait_for_group(group: int) -> None:
    """Wait until no process of that group is left; they end by themselves."""
    from onceonly.dev.demo.standalone import wait_until

    def is_gone() -> bool:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(is_gone, "the workers end", PATIENCE, every=0.05)


def test_the_folder_has_to_exist(tmp_path: Path) -> None:
    job = Job(str(tmp_path / "nowhere"), folders.make_name(NOW), 1, 0)
    with raises(InvalidPipeline, "probe-folder-missing"):
        storage.probe(job, lambda job: {})
