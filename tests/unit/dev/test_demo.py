"""What a demo that is started beside or after another one does to it."""

import sys
from pathlib import Path

import psutil
import pytest
from codes import raises

from onceonly.dev.demo import run as demo
from onceonly.dev.services.daemon import Daemon
from onceonly.errors import NotCommitted


def test_a_second_demo_in_the_same_place_is_refused(tmp_path: Path) -> None:
    with (
        demo.lock_folder(tmp_path / "demo"),
        raises(NotCommitted, "demo-running"),
        demo.lock_folder(tmp_path / "demo"),
    ):
        pass
    with demo.lock_folder(tmp_path / "demo"):
        pass


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_, **__: False)
    with raises(NotCommitted, "folder-not-writable"), demo.lock_folder(tmp_path / "home" / "demo"):
        pass
    assert not (tmp_path / "home").exists()


def test_what_an_earlier_demo_left_running_is_ended_before_its_records_go(tmp_path: Path) -> None:
    airflow = Daemon(tmp_path / "airflow")
    airflow.folder.mkdir()
    airflow.start([sys.executable, "-c", "import time; time.sleep(600)"], 1, {})
    started = airflow.last()
    assert started and started.pid
    demo.clear(tmp_path)
    assert not psutil.pid_exists(started.pid)
    assert not tmp_path.exists()
