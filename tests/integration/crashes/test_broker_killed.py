"""One of three brokers is killed between stage and commit. The other faults of brokers: test_brokers_under_fire.py."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.faults.dying import arrived, check_truth, fill, nothing_is_left
from integration.projects.copying import make_copy
from integration.projects.kafka_writers import by_each_writer
from integration.services.brokers import Brokers, brokers

from onceonly.checkpoint.model import State
from onceonly.errors import OutcomeUnknown

pytestmark = [pytest.mark.integration, pytest.mark.heavy, by_each_writer]
NUMBERS = range(400)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    yield from brokers(tmp_path_factory.mktemp("brokers"))


def test_a_leader_and_coordinator_is_killed_between_stage_and_commit(
    three: Brokers, tmp_path: Path, broker: str, spark_server: str
) -> None:
    """The two that are left publish every row, and nothing holds up a reader."""
    three.start()  # also the one that the test before has killed
    name = uuid.uuid4().hex[:8]
    out, sink = three.topic(f"out-{name}"), {"bootstrap": three.bootstrap}
    copy = make_copy(tmp_path, broker, spark_server, f"in_{name}", "staged", out=out, sink=sink, few=True)
    fill(copy, NUMBERS, len(NUMBERS))
    copy.stage()
    victim = three.coordinator(copy.open()[0])
    assert victim in three.leaders(out).values()
    assert arrived(copy) == {}
    three.kill(victim)
    try:
        copy.commit()
    except OutcomeUnknown as error:
        print(error)
        copy.recover()
    assert copy.now().state is State.COMMITTED
    check_truth(copy, NUMBERS)
    nothing_is_left(copy)
