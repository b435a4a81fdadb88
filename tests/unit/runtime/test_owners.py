"""Who counts as alive: processes that can be seen by what they are, everyone else by a lease."""

import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from patience import PATIENCE
from unit.world import World

from onceonly.checkpoint.model import State
from onceonly.errors import OutcomeUnknown
from onceonly.runtime import owners
from onceonly.views import formatting

LONG_AGO = datetime.now(UTC) - timedelta(days=9)
OWNER = "from onceonly.runtime import owners; print(owners.process_owner(), flush=True); import time; time.sleep(300)"


@dataclass(frozen=True)
class Owned:
    """What `alive` looks at of a checkpoint."""

    owner: str
    updated_at: datetime = LONG_AGO


@pytest.fixture
def process():
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as started:
        yield started
        started.kill()


def test_a_process_is_alive_as_long_as_it_is_at_work(process):
    owned = Owned(process.stdout.readline().strip())
    assert owners.is_alive(owned)
    process.kill()
    process.wait()
    assert not owners.is_alive(owned)


def test_a_process_that_nobody_has_taken_note_of_has_ended(process):
    owned = Owned(process.stdout.readline().strip())
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie from here on
    assert not owners.is_alive(owned)


def test_a_process_id_that_was_used_again_is_another_process():
    *same, started = owners.process_owner().split(":")
    assert owners.is_alive(Owned(":".join([*same, started])))
    assert not owners.is_alive(Owned(":".join([*same, str(int(started) - 1)])))


def test_the_clock_has_no_part_in_it(monkeypatch):
    """A change of the clock moves the time of the boot, and with it every time of a start."""
    psutil = pytest.importorskip("psutil")
    owned = Owned(owners.process_owner())
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: 0)
    assert owners.is_alive(owned)


@pytest.mark.parametrize("part", ["boot", "namespace"])
def test_a_process_elsewhere_has_a_lease_whatever_its_host_is_called(part):
    kind, host, place, pid, _ = owners.process_owner().split(":")
    boot, namespace = place.split(".")
    other = f"{boot[::-1]}.{namespace}" if part == "boot" else f"{boot}.{int(namespace) + 1}"
    owner = f"{kind}:{host}:{other}:{pid}:1"
    assert owners.is_alive(Owned(owner, datetime.now(UTC)))
    assert not owners.is_alive(Owned(owner))


def test_a_lease_is_renewed_until_there_is_nothing_to_renew():
    left = ["once", "an error", "again"]
    ended = threading.Event()

    def renew() -> bool:
        if not left:
            ended.set()
            return False
        if left.pop(0) == "an error":
            raise OutcomeUnknown("the storage does not answer")
        return True

    with owners.keep_lease(renew, timedelta(milliseconds=1)):
        assert ended.wait(PATIENCE)
    assert not [thread for thread in threading.enumerate() if thread.name == "onceonly-lease"]


def test_a_process_shows_that_it_is_at_work_only_while_its_claim_holds(tmp_path):
    world = World(tmp_path)
    world.plan("run-1")
    mine = world.coordinator._stager.claim("flights", 1, None).require(1)
    assert world.coordinator._stager.renew(mine)
    assert world.now().updated_at > mine.updated_at
    assert world.stage().state is State.STAGED
    assert not world.coordinator._stager.renew(mine)
    assert world.events() == ["planned", "claimed", "renewed", "claimed", "staged"]


def test_people_are_shown_host_and_process_alone():
    assert formatting.owner("cli:laptop:f00d.4026531836:12:3400") == "cli laptop:12"
    assert formatting.owner("cli:laptop:12:34") == "cli laptop:12"
    assert formatting.owner("airflow:flights:scheduled__2013") == "airflow flights:scheduled__2013"
