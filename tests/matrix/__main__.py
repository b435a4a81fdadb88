"""make matrix ARGS="spark-3.5 airflow": each cell's result, and the table in README.md. 0 when all of them held."""

from __future__ import annotations

import signal
import sys

from matrix import results, table
from matrix.cells import Cell, selected
from matrix.environments import Environment, NotInstalled
from matrix.trial import try_out


def main(words: list[str]) -> int:
    held = []
    for cell in selected(words):
        held.append(held_in(cell))
        table.write()
    return 0 if all(held) else 1


def held_in(cell: Cell) -> bool:
    """Whether every row was where it belongs, once."""
    environment = Environment(cell)
    try:
        environment.make()
    except NotInstalled as error:
        return results.write(cell, results.NOT_INSTALLED, str(error))
    try:
        found = try_out(cell)
    except Exception as error:
        return results.write(cell, results.FAILS, f"{type(error).__name__}: {error}", environment.versions())
    return results.write(cell, results.WORKS, "", environment.versions(), found)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it has started ends with it
    sys.exit(main(sys.argv[1:]))
