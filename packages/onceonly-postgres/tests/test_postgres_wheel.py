"""The package as it is installed from its wheel: commands find it, check its table, and explain its errors."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from integration.services.postgres import Postgres
from plain_client import execute

PACKAGE = Path(__file__).parents[1]
SOURCES = PACKAGE.parents[1] / "src"
PIPELINE = """
from onceonly import DeltaSource, Pipeline
from onceonly_postgres import PostgresSink

numbers = Pipeline(
    name="numbers",
    source=DeltaSource("incoming"),
    transform="jobs:same",
    sinks=[PostgresSink("lake", "{table}", connection="shop_database", checkpoint_column="checkpoint")],
)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The content of the wheel, as pip unpacks it."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(PACKAGE)]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    [wheel] = folder.glob("onceonly_postgres-*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def run_command(site: Path, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{SOURCES}", "ONCEONLY_PROJECT": str(home)}
    return subprocess.run(
        [sys.executable, "-c", "from onceonly.cli import main; main()", *arguments],
        cwd=home,
        env=env,
        capture_output=True,
        text=True,
    )


def test_wheel_has_types_and_codes(site: Path) -> None:
    names = {path.name for path in (site / "onceonly_postgres").iterdir()}
    assert {"py.typed", "postgres.toml", "writer.py"} <= names


@pytest.mark.integration
def test_check_finds_the_sink(site: Path, database: Postgres, tmp_path: Path) -> None:
    table = f"numbers_{uuid.uuid4().hex[:8]}"
    (tmp_path / ".onceonly").mkdir()
    write_deltalake(tmp_path / ".onceonly" / "incoming", pa.table({"n": [1]}))
    (tmp_path / "jobs.py").write_text("def same(batch):\n    return {'lake': batch}\n")
    (tmp_path / "numbers_pipeline.py").write_text(PIPELINE.format(table=table))
    refused = run_command(site, tmp_path, "check", "numbers_pipeline.py:numbers")
    assert (refused.returncode, "[postgres-table-missing]" in refused.stderr) == (5, True), refused.stderr
    execute(database.port, f'CREATE TABLE "{table}" (n int, checkpoint text)')
    checked = run_command(site, tmp_path, "check", "numbers_pipeline.py:numbers")
    assert checked.returncode == 0, checked.stderr
    assert f"publishes to table 'public.{table}' of connection 'shop_database'" in checked.stdout


def test_errors_are_explained(site: Path, tmp_path: Path) -> None:
    explained = run_command(site, tmp_path, "explain", "postgres-locked")
    assert (explained.returncode, "pg_locks" in explained.stdout) == (0, True), explained.stderr
