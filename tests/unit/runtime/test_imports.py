"""What a process imports: a command, or a task of Airflow, does not wait for what it does not use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

from onceonly.pipeline import sinks as sink_configs
from onceonly.pipeline.sink_config import SinkConfig

pytestmark = pytest.mark.slow

ENGINES = {"airflow", "great_expectations", "pandas", "pyspark"}
WRITERS = sorted(
    {
        config.writer.partition(":")[0]
        for config in vars(sink_configs).values()
        if isinstance(config, type) and issubclass(config, SinkConfig) and hasattr(config, "writer")
    }
)
MODULES = ["onceonly.cli", "onceonly.runtime.live_services", "onceonly.runtime.spark_stage", *WRITERS]


@pytest.mark.parametrize("module", MODULES)
def test_what_a_commit_needs_imports_no_engine(module: str) -> None:
    """pyarrow's datasets bring pandas along: more than half of the CPU of all these imports."""
    program = f"import sys, {module}; print(*sorted({ENGINES!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.split() == []


def test_a_row_of_the_state_table_is_written_without_an_engine(tmp_path: Path) -> None:
    program = f"""
import sys
from onceonly.checkpoint.model import Event, Row
from onceonly.statetable import row_files
row_files.put({str(tmp_path)!r}, [Row("flights", 1, 1, Event.PLANNED, 0)], "rows")
print(*sorted({ENGINES!r} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.split() == []
    assert (tmp_path / "rows.parquet").exists()
