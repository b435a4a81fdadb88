"""The matrix in README.md, between its markers: python -m matrix.table (with PYTHONPATH=tests)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matrix import results

PAGE = Path(__file__).parents[2] / "README.md"
PLACE = re.compile(r"(<!-- matrix -->\n).*?(<!-- /matrix -->)", re.DOTALL)
PARTS = {  # of a cell's name: what is shown, and the version that is
    "today": ("today's", None),
    "spark": ("Spark", "pyspark"),
    "airflow": ("Airflow", "apache-airflow"),
    "kafka": ("Kafka broker", "kafka broker"),
    "python": ("Python", "python"),
}


def render(found: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each part, and below the table a sentence for each cell that does not work."""
    rows = ["| | works | does not |", "| --- | --- | --- |"]
    for part, (title, version) in PARTS.items():
        cells = [cell for name, cell in found.items() if name.partition("-")[0] == part]
        if version:
            works = [_shown(cell, version) for cell in cells if cell["outcome"] == results.WORKS]
            others = [f"{_shown(cell, version)}: {cell['why']}" for cell in cells if cell["outcome"] != results.WORKS]
            rows.append(f"| {title} | {', '.join(works)} | {'; '.join(others)} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    """README.md as it has to be."""
    table = render(results.read())
    return PLACE.sub(lambda place: place[1] + table + place[2], PAGE.read_text())


def write() -> None:
    PAGE.write_text(page())


def _shown(cell: Mapping[str, Any], version: str) -> str:
    return str(cell["versions"].get(version, cell["cell"].partition("-")[2]))


if __name__ == "__main__":
    write()
