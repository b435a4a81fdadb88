"""Each damage of a healthy demo is found and named, and nothing healthy is accused."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.projects.damaged_demo import DAMAGES, Demo, DemoDamage

from onceonly.checkpoint.finding_codes import FindingCode

pytestmark = pytest.mark.integration
MIN_DAMAGES = 30


def test_damages_are_many() -> None:
    names = {damage.name for damage in DAMAGES}
    assert len(names) == len(DAMAGES) >= MIN_DAMAGES
    assert {code for damage in DAMAGES for code in damage.codes} <= set(FindingCode)


def test_healthy_demo_is_not_accused(tmp_path: Path, broker: str) -> None:
    demo = Demo(tmp_path, broker)
    assert {name for name, pairs in demo.verify().items() if pairs} == set()


@pytest.mark.parametrize("damage", DAMAGES, ids=[damage.name for damage in DAMAGES])
def test_damage_is_found_and_named(damage: DemoDamage, tmp_path: Path, broker: str) -> None:
    demo = Demo(tmp_path, broker)
    damage.do(demo)
    assert damage.judge(demo.verify()) == ""
