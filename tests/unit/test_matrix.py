"""The table of versions in the README says what the matrix has found, and each cell has a result."""

from __future__ import annotations

import json
import re
import socket

import pytest
from matrix import results, table
from matrix.cells import CELLS, Cell, selected
from matrix.environments import CONSTRAINTS


def test_the_readme_says_what_was_found() -> None:
    """Otherwise: PYTHONPATH=tests:. python -m matrix.table."""
    assert table.PAGE.read_text() == table.page()


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_each_cell_has_a_result_with_a_reason(cell: Cell) -> None:
    found = results.read()[cell.name]
    assert found["cell"] == cell.name
    assert (found["outcome"] == results.WORKS) == (not found["why"])
    if found["outcome"] in (results.WORKS, results.FAILS):
        assert dict(pin.split("==") for pin in cell.pins).items() <= found["versions"].items()
        assert cell.broker in (None, found["versions"]["kafka broker"])


def test_no_result_and_no_constraint_is_left_over() -> None:
    assert {file.stem for file in results.FOLDER.glob("*.json")} <= {cell.name for cell in CELLS}
    tried = {cell.packages for cell in CELLS if not cell.missing}
    assert {file.stem for file in CONSTRAINTS.glob("*.txt")} == tried


def test_a_result_names_neither_this_machine_nor_its_folders() -> None:
    for file in [*results.FOLDER.glob("*.json"), *CONSTRAINTS.glob("*.txt")]:
        text = file.read_text()
        assert not re.search(r"/tmp/|/home/|/root/|/work/|https?://", text), file.name
        assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)


def test_a_result_has_the_rows_of_every_sink() -> None:
    for name, found in results.read().items():
        if found["outcome"] == results.WORKS:
            assert min(found["rows"].values()) > 0, name


def test_each_spark_has_written_to_kafka_in_its_own_jvm() -> None:
    tried = [found for name, found in results.read().items() if name.startswith("spark")]
    worked = [found["Kafka writers"] for found in tried if found["outcome"] == results.WORKS]
    assert len(worked) > 3
    assert {name for names in worked for name in names} == {"jvm"}


def test_cells_are_selected_by_how_their_names_begin() -> None:
    assert {cell.part for cell in selected(["spark"])} == {"spark"}
    assert selected([]) == list(CELLS)
    with pytest.raises(SystemExit, match=r"There are: .*spark-3\.5"):
        selected(["flink"])


def test_a_reason_is_one_line_without_folders() -> None:
    told = results._sentence("Failed: it\nTraceback\nat /some/where/else/file.py: no such class\n\n")
    assert told == "at …/file.py: no such class"
    assert json.dumps(results._sentence("")) == '""'
