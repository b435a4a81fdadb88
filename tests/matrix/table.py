"""The matrix in README.md, between its markers: PYTHONPATH=tests:. python -m matrix.table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matrix import results
from matrix.cells import TODAY

PAGE = Path(__file__).parents[2] / "README.md"
PLACE = re.compile(r"(<!-- matrix -->\n).*?(<!-- /matrix -->)", re.DOTALL)
PARTS = {  # of a cell's name: what is shown, and which of its versions
    "spark": ("Spark", "pyspark"),
    "airflow": ("Airflow", "apache-airflow"),
    "kafka": ("Kafka broker", "kafka broker"),
    "python": ("Python", "python"),
}


def render(found: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each part: the versions that work, why others do not, and those that were not tried."""
    rows = ["| | works | does not work | not run yet |", "| --- | --- | --- | --- |"]
    for part, (title, version) in PARTS.items():
        told = {_shown(cell, version): cell for name, cell in found.items() if _is_of(name, part, cell, version)}
        inorder = sorted(told, key=_number)
        works = [shown for shown in inorder if told[shown]["outcome"] == results.WORKS]
        later = [shown for shown in inorder if told[shown]["outcome"] == results.NOT_RUN]
        others = [f"{shown}: {told[shown]['why']}" for shown in inorder if shown not in [*works, *later]]
        rows.append(f"| {title} | {', '.join(works)} | {'; '.join(others)} | {', '.join(later)} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    """README.md as it has to be."""
    table = render(results.read())
    return PLACE.sub(lambda place: place[1] + table + place[2], PAGE.read_text())


def write() -> None:
    PAGE.write_text(page())


def _is_of(name: str, part: str, cell: Mapping[str, Any], version: str) -> bool:
    """Today's cell is of each part that it has."""
    return name.partition("-")[0] == part or (name == TODAY and version in cell["versions"])


def _shown(cell: Mapping[str, Any], version: str) -> str:
    return str(cell["versions"].get(version, cell["cell"].partition("-")[2]))


def _number(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


if __name__ == "__main__":
    write()
