"""The power is cut at any moment: what was told is there afterwards, and every row arrives once when work goes on.

What a disk may have after a cut is worked out from the system calls of a process that runs checkpoints: see `power`.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from integration.faults.power import Image, Op, Recording, Sync, record
from integration.faults.sampling import sampled, seconds
from integration.programs import power_program
from integration.programs.power_program import NAME, TARGET, TOPICS
from integration.readers.histories import check_values
from unit.lightfiles import LightFiles

from onceonly.errors import OnceonlyError
from onceonly.statetable.table import StateTable

pytestmark = [pytest.mark.integration, pytest.mark.crash, pytest.mark.timeout(seconds(900))]
NUMBERS = 12
SEED = 1
CUTS = sampled(None, 120)  # of `make test`; None: all that the model has
ROOT = Path(__file__).parents[3]
PATHS = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests")))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


def record_run(root: Path, syncs: str = "all") -> Recording:
    command = [sys.executable, power_program.__file__, str(root), str(NUMBERS), syncs]
    return record(command, root, TOPICS, root.with_name("strace"), {"PYTHONPATH": PATHS})


def lost_rows(root: Path, image: Image) -> list[str]:
    """What was told of the state table and is not there after a cut."""
    image.restore(root)
    told = [word for word in image.told if word.startswith("row ")]
    if not told:
        return []
    try:
        history = StateTable(str(root / "state")).history(NAME)
    except OnceonlyError:
        return told
    rows = {f"row {row.seq} {row.event.value}" for row in history}
    return [word for word in told if word not in rows]


def go_on(root: Path, image: Image) -> None:
    """Somebody starts the machine again, and the pipeline."""
    if "made" not in image.told:
        power_program.make(root)
    power_program.run(root, "second")
    check_values("files", range(NUMBERS), LightFiles(root / TARGET).values(), by=image.why)


def test_no_cut_loses_what_was_told(root: Path) -> None:
    recording = record_run(root)
    images = recording.images(SEED, CUTS)
    for image in images:
        assert lost_rows(root, image) == [], image.why
        go_on(root, image)
    kinds = Counter(type(event).__name__ for event in recording.events)
    print(
        f"{kinds[Op.__name__]} changes, {kinds[Sync.__name__]} syncs, {len(images)} images of cuts: none loses anything"
    )


def test_the_model_has_exactly_what_the_program_did(root: Path) -> None:
    recording = record_run(root)
    found = {str(path.relative_to(root)): None if path.is_dir() else path.read_bytes() for path in root.rglob("*")}
    assert dict(recording.disk.image()) == found


@pytest.mark.parametrize("syncs", ["no folders", "nothing"])
def test_a_program_that_forgets_to_sync_is_found(root: Path, syncs: str) -> None:
    images = record_run(root, syncs).images(SEED, 60)
    assert any(lost_rows(root, image) for image in images)
