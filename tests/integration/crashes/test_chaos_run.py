"""Some seconds of chaos: nothing is lost or doubled, and what is damaged behind the product's back is found."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from integration.readers.kafka_reader import until
from patience import PATIENCE

from onceonly.dev.chaos.airflow_runs import explain_absence
from onceonly.dev.chaos.run import Chaos
from onceonly.dev.chaos.schedule import FaultKind
from onceonly.testing.history import History, find_anomalies

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]
KILL_SEED = 39  # its first fault kills a run


def is_left(folder: Path) -> bool:
    if any(str(folder) in " ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])):
        return True
    return str(folder) in Path("/proc/mounts").read_text()


def check_page(folder: Path, seed: int) -> None:
    page = (folder / "report.md").read_text()
    assert "No violation" in page and f"--seed {seed}" in page
    assert not is_left(folder)


def test_a_kill_violates_nothing(tmp_path: Path) -> None:
    report = Chaos(tmp_path, KILL_SEED, 9).run()
    assert report.violations == []
    assert [fault.kind for fault, _ in report.faults] == [FaultKind.KILL]
    assert report.outcomes["run: committed"] >= 1
    check_page(tmp_path, KILL_SEED)


@pytest.mark.heavy
def test_a_minute_of_chaos_violates_nothing(tmp_path: Path) -> None:
    report = Chaos(tmp_path, 7, 60).run()
    assert report.violations == []
    assert report.injected >= 4
    assert find_anomalies(History.load(tmp_path / "history.jsonl")) == []
    check_page(tmp_path, 7)


@pytest.mark.heavy
@pytest.mark.skipif(bool(explain_absence()), reason="Airflow is not installed")
def test_a_minute_beside_airflow_violates_nothing(tmp_path: Path) -> None:
    report = Chaos(tmp_path, 2, 60, has_airflow=True).run()  # its first fault kills Airflow
    assert report.violations == []
    assert any(outcome.startswith("Airflow's chaos") for outcome in report.outcomes)
    assert "killed with its tasks" in report.faults[0][1]
    check_page(tmp_path, 2)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("damage", "anomaly", "has_wrong"),
    [
        ("duplicate", "duplicate in table", True),
        ("loss", "lost-write in table", True),
        ("copy-duplicate", "duplicate in copy", False),
    ],
)
def test_a_seeded_violation_is_found(tmp_path: Path, damage: str, anomaly: str, has_wrong: bool) -> None:
    """By the history, and by verify, which knows nothing of it. Verify accuses nobody of other records in a topic."""
    report = Chaos(tmp_path, KILL_SEED, 9, damage).run()
    assert any(violation.startswith(anomaly) for violation in report.violations)
    assert any(violation.startswith("onceonly verify") for violation in report.violations) == has_wrong
    assert "(exit code 6)" in report.verification or not has_wrong
    history = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert history and not is_left(tmp_path)


@pytest.mark.heavy
def test_who_ends_it_leaves_no_process(tmp_path: Path) -> None:
    folder, log = tmp_path / "chaos", tmp_path / "log"
    words = ["--minutes", "30", "--seed", str(KILL_SEED), "--no-airflow", "--folder", str(folder)]
    with log.open("w") as output:
        command = [sys.executable, "-m", "onceonly.testing.chaos", *words]
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    until(lambda: "a run was killed" in log.read_text(), what="the first fault")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 1
    assert "Broken off" in (folder / "report.md").read_text()
    assert not is_left(folder)
