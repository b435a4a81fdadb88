"""What each cell has shown, as tests/matrix/results/NAME.json: versions, outcome, rows. No path and no host name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from matrix.cells import CELLS, Cell
from onceonly.spark import jars

FOLDER = Path(__file__).with_name("results")
SHOWN = ("python", "pyspark", "apache-airflow", "deltalake", "confluent-kafka", "kafka-python", "pyarrow")
WORKS, FAILS, NOT_INSTALLED, NOT_RUN = "works", "fails", "not installed", "not run"
LONGEST = 300  # characters of a reason; whoever runs the matrix sees all of it


def write(
    cell: Cell,
    outcome: str,
    why: str,
    versions: Mapping[str, str] | None = None,
    found: Mapping[str, object] | None = None,
) -> bool:
    """Replace the result of one cell, and print it; whether it works."""
    known = {name: versions[name] for name in SHOWN if name in versions} if versions else {}
    told = {
        "cell": cell.name,
        "outcome": outcome,
        "why": _sentence(why),
        "when": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": {**known, "kafka broker": cell.broker or _today()},
        **(found or {}),
    }
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{cell.name}.json").write_text(json.dumps(told, indent=1) + "\n")
    print(f"{cell.name}: {outcome} {why}", flush=True)
    return outcome == WORKS


def read() -> dict[str, dict[str, Any]]:
    """By cell, in their order."""
    files = {cell.name: FOLDER / f"{cell.name}.json" for cell in CELLS}
    return {name: json.loads(file.read_text()) if file.exists() else _never(name) for name, file in files.items()}


def _never(name: str) -> dict[str, Any]:
    return {"cell": name, "outcome": NOT_RUN, "why": "it was not run yet", "versions": {}}


def _sentence(why: str) -> str:
    """Its last line of text, without this machine's folders."""
    lines = [line.strip() for line in why.splitlines() if line.strip()]
    return re.sub(r"(?<![\w.])/[\w./-]+/", "…/", lines[-1])[:LONGEST] if lines else ""


def _today() -> str:
    """The broker's revision in ivy.xml."""
    return next(jar.revision for jar in jars.list_jars("broker") if jar.name == "kafka_2.13")
