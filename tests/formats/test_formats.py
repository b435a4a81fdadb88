"""What an older version left is finished by this one: each state of a checkpoint, with targets, spools and topics."""

from __future__ import annotations

import fcntl
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pandas
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from formats.frozen import ARCHIVES, CHECKPOINTS, HOME, NUMBERS, POINTS, environment, expected_sums
from integration.programs.children import output, start, without_spark
from integration.readers.kafka_reader import committed
from patience import PATIENCE

from onceonly.checkpoint.model import State
from onceonly.cli import main
from onceonly.dev.services import Services
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable

VERSIONS = sorted(ARCHIVES.glob("*.tar.xz"))
pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("formats")]


@pytest.fixture(params=VERSIONS, ids=lambda archive: archive.name.removesuffix(".tar.xz"))
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a broker that runs on the archive's data; one test at a time on this machine has that folder."""
    with HOME.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(HOME, ignore_errors=True)
        with tarfile.open(request.param) as archive:
            archive.extractall(HOME, filter="data")
        services = Services(HOME, port=0)
        try:
            yield services.up().bootstrap
        finally:
            services.down()
            shutil.rmtree(HOME)


def open_states(settings: Settings) -> dict[str, State]:
    """Return the state of each pipeline's newest checkpoint."""
    table = StateTable(settings.state)
    newest = {name: table.view(name).latest for name in POINTS}
    return {name: checkpoint.state for name, checkpoint in newest.items() if checkpoint}


def read_sums(folder: Path, runs: list[str]) -> dict[int, int]:
    """Return key -> total of a state: the youngest row of each key."""
    rows = pandas.concat([pandas.read_parquet(folder / run) for run in runs])
    youngest = rows.sort_values("_epoch").drop_duplicates("key", keep="last")
    return dict(zip(youngest["key"].tolist(), youngest["total"].tolist(), strict=True))


def read_files(folder: Path) -> pandas.DataFrame:
    """Return the rows that a reader of the folder finds: names that begin with a dot or an underscore are hidden."""
    paths = [path.relative_to(folder) for path in folder.rglob("*.parquet")]
    visible = [path for path in paths if not any(part[0] in "._" for part in path.parts)]
    return pandas.concat([pandas.read_parquet(folder / path) for path in visible])


def test_there_is_an_archive() -> None:
    assert VERSIONS


@pytest.mark.timeout(900)
def test_what_a_version_left_open_is_finished(bootstrap: str, spark_server: str) -> None:
    env = environment(bootstrap)
    settings = Settings.from_env(env)
    relocated = CliRunner().invoke(main, ["state", "relocate"], env=env)  # the archive is a copy
    assert relocated.exit_code == 0, relocated.output
    before = open_states(settings)
    assert set(before.values()) == {state for state in State if not state.is_settled}
    child = start(str(ARCHIVES / "run.py"), spark_server, "-", *POINTS, env={**without_spark(os.environ), **env})
    printed = output(child, 4 * PATIENCE)
    assert child.returncode == 0, printed

    table = StateTable(settings.state)
    for name in POINTS:
        lake = HOME / "lake" / name
        view = table.view(name)
        assert [checkpoint.state for checkpoint in view.open] == []
        latest = view.latest
        assert latest is not None
        assert latest.epoch == CHECKPOINTS
        assert sorted(DeltaTable(str(lake / "table")).to_pyarrow_table()["n"].to_pylist()) == list(NUMBERS)
        files = read_files(lake / "files")
        assert sorted(files["n"].tolist()) == list(NUMBERS)
        records = committed(bootstrap, f"out-{name}")
        assert sorted(int(record.value or b"") for record in records) == list(NUMBERS)
        folder = HOME / "appstate" / name / "sums"
        assert read_sums(folder, [run["folder"] for run in latest.handles["sums"]["runs"]]) == expected_sums()
