"""No setting of a Spark session makes rows disappear."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from codes import raises

import onceonly
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.spark import row_files

SOURCE = Path(onceonly.__file__).parent
# Kafka's source, whose option for this is failOnDataLoss; and the words of messages.
ELSEWHERE = {"spark/topics.py", "spark/row_files.py"}


class Settings(dict[str, str]):
    """Of a session; `locked` ones cannot be changed."""

    locked: tuple[str, ...] = ()

    def set(self, name: str, value: str) -> None:
        if name in self.locked:
            raise RuntimeError(f"{name} cannot be modified")
        self[name] = value


class Session:
    def __init__(self, settings: Settings) -> None:
        self.conf = settings
        self.read = self

    def options(self, **options: str) -> dict[str, str]:
        return options


@pytest.mark.parametrize("setting", row_files.SKIPPING_SETTINGS)
def test_skipping_of_files_is_switched_off(setting: str) -> None:
    settings = Settings({setting: "true"})
    session: Any = Session(settings)
    assert row_files.strict_reader(session) == row_files.FILE_OPTIONS
    assert settings[setting] == "false"


@pytest.mark.parametrize("setting", row_files.SKIPPING_SETTINGS)
def test_session_that_must_skip_is_refused(setting: str) -> None:
    settings = Settings({setting: "TRUE"})
    settings.locked = (setting,)
    session: Any = Session(settings)
    with raises(InvalidPipeline, "spark-skips-files") as refused:
        row_files.strict_reader(session)
    assert refused.value.code == "spark-skips-files"


@pytest.mark.parametrize("rows", [0, 9, 11])
def test_other_number_of_rows_is_refused(rows: int) -> None:
    row_files.require_rows(10, 10, "the rows")
    with raises(NotCommitted, "rows-differ") as refused:
        row_files.require_rows(rows, 10, "the rows")
    assert refused.value.code == "rows-differ"


def test_files_are_opened_in_one_place() -> None:
    """Whatever reads files with Spark begins with `strict_reader`, also what is added later."""
    found = {
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        if str(path.relative_to(SOURCE)) not in ELSEWHERE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "read" and _is_a_session(node.value)
    }
    assert not found


def _is_a_session(node: ast.expr) -> bool:
    """Whether an expression is a Spark session, by its name."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    called = isinstance(node, ast.Call) and _is_a_session(node.func)
    return called or name.lower() in {"spark", "session", "sparksession", "_spark"}
