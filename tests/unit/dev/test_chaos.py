"""A chaos run's faults by its seed, its clock, and its page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest
from click.testing import CliRunner
from patience import PATIENCE

from onceonly.dev.chaos import run
from onceonly.dev.chaos.observers import _Loop
from onceonly.dev.chaos.report import Report
from onceonly.dev.chaos.schedule import FaultKind, make_schedule
from onceonly.dev.chaos.verifying import judge

SHIFT = """
import sys
from onceonly.dev.chaos.worker import shift_clock
shift_clock(3600)
import datetime, json, pickle, time
now = datetime.datetime.now(datetime.UTC)
print(json.dumps([
    now.timestamp(), time.time(), isinstance(now, datetime.datetime), isinstance(1, datetime.datetime),
    pickle.dumps(now).hex(),
]))
"""


def test_the_same_seed_has_the_same_faults() -> None:
    assert make_schedule(7, 600) == make_schedule(7, 600)
    assert make_schedule(7, 600) != make_schedule(8, 600)


def test_a_longer_run_begins_as_a_shorter_one() -> None:
    short, long = make_schedule(7, 60), make_schedule(7, 600)
    assert long[: len(short)] == short


def test_every_kind_comes_before_one_comes_again() -> None:
    faults = make_schedule(7, 1800)
    first = {fault.kind for fault in faults[: len(FaultKind)]}
    assert first == set(FaultKind)
    assert all(fault.at < 1800 for fault in faults)


def test_faults_are_shown_and_nothing_is_started() -> None:
    result = CliRunner().invoke(run.main, ["--minutes", "1", "--seed", "7", "--schedule"])
    assert result.output.splitlines() == [str(fault) for fault in make_schedule(7, 60)]


def test_a_worker_believes_in_another_time() -> None:
    code = ["-c", SHIFT]
    printed = subprocess.run([sys.executable, *code], capture_output=True, text=True, check=True).stdout
    now, time_, is_datetime, is_number, pickled = json.loads(printed)
    assert abs(now - time_) < 60 and is_datetime and not is_number
    unpickle = f"import pickle; print(pickle.loads(bytes.fromhex('{pickled}')).timestamp())"
    real = subprocess.run([sys.executable, "-c", unpickle], capture_output=True, text=True, check=True).stdout
    assert abs(float(real) - now) < 1


def test_the_page_has_faults_and_the_way_to_repeat_them() -> None:
    faults = make_schedule(7, 20)
    report = Report(7, 1.0, "python -m onceonly.testing.chaos --minutes 1 --seed 7", [(faults[0], "it was killed")])
    report.violations.append("lost-write in table: 3")
    report.is_complete = True
    page = report.to_markdown()
    assert "1 violation." in page and "- lost-write in table: 3" in page
    assert "python -m onceonly.testing.chaos --minutes 1 --seed 7" in page and "it was killed" in page


def test_a_run_that_was_broken_off_says_nothing() -> None:
    assert "No violation" not in Report(7, 1.0, "again").to_markdown()


def finding(judgement: str, code: str) -> dict[str, str]:
    return {"judgement": judgement, "kind": "sink", "name": "copy", "epochs": "1-3", "code": code, "why": "so it is"}


def print_verification(*findings: dict[str, str]) -> str:
    counts = {"right": 1, "wrong": 0, "unknown": 2}
    subjects = [{"kind": "sink", "name": "copy", "counts": counts}]
    return json.dumps({"judgement": "unknown", "subjects": subjects, "findings": findings})


@pytest.mark.parametrize(
    ("code", "findings", "found"),
    [
        (0, [], []),
        (0, [finding("right", "optimized")], []),
        (7, [finding("unknown", "not-verifiable")], ["not-verifiable"]),
        (6, [finding("wrong", "file-missing"), finding("unknown", "history-gone")], ["file-missing", "history-gone"]),
        (7, [], ["says 'unknown'"]),
        (2, [], ["ended with 2: no state table"]),
    ],
)
def test_what_verify_should_know_and_does_not_is_a_violation(
    code: int, findings: list[dict[str, str]], found: list[str]
) -> None:
    verified = judge(code, print_verification(*findings), "no state table")
    assert len(verified.violations) == len(found)
    assert all(word in violation for word, violation in zip(found, verified.violations, strict=True))


def test_each_run_of_a_seed_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path))
    folders = [run.make_folder(None, 7) for _ in range(3)]
    assert folders == [tmp_path / "chaos" / name for name in ("7", "7-2", "7-3")]


def test_a_folder_that_exists_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(run.main, ["--folder", str(tmp_path)])
    assert (result.exit_code, "exists" in result.output) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_what_a_sender_or_reader_could_not_do_is_told() -> None:
    def fail() -> None:
        done.set()
        raise OSError("the broker is down")

    done = Event()
    loop = _Loop("chaos-sender", fail, 0.0)
    assert loop.describe_failures() == []
    loop.start()
    assert done.wait(PATIENCE)
    loop.stop()
    (text,) = loop.describe_failures()
    assert text.startswith("chaos-sender failed") and text.endswith("last by OSError: the broker is down")
