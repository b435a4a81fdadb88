"""What Airflow 3.1 and 3.2 have elsewhere is found there, and nothing else in the package asks the newest for it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceonly.airflow import runs, versions

PACKAGE = Path(versions.__file__).parent
NEWER = re.compile(  # as `make matrix` has seen
    r"from airflow\.sdk\.(configuration|observability)\b"
    r"|from airflow\.sdk\.exceptions import .*\bAirflow(Fail|Skip|NotFound)Exception"
    r"|from airflow\.sdk import [^)]*Timetable"
    r"|\bNEVER_EXPIRE\b.*\n?.*airflow\.sdk"
)


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: file.stem)
def test_one_module_knows_what_is_elsewhere(file: Path) -> None:
    if file.name != "versions.py":
        assert not (found := NEWER.search(file.read_text())), found


def places(monkeypatch: pytest.MonkeyPatch, having: set[str]) -> None:
    """Modules of that name have everything; others do not exist."""

    def imported(name: str) -> Any:
        if name not in having:
            raise ModuleNotFoundError(name)
        return SimpleNamespace(**dict.fromkeys(versions._PLACES, name))

    monkeypatch.setattr(versions, "import_module", imported)
    for name in versions._PLACES:
        monkeypatch.delitem(vars(versions), name, raising=False)


def test_each_name_is_found_in_an_older_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    older = {"airflow.exceptions", "airflow.configuration", "airflow.timetables.interval", "airflow.timetables.trigger"}
    places(monkeypatch, older)
    found = {name: versions.__getattr__(name) for name in versions._PLACES}
    for name in versions._PLACES:  # for good: it would be put back after the test
        vars(versions).pop(name, None)
    assert {name for name, place in found.items() if place not in older} == {"NEVER_EXPIRE"}
    assert found["NEVER_EXPIRE"] is None


def test_another_name_is_unknown() -> None:
    with pytest.raises(AttributeError):
        versions.__getattr__("Anything")


def test_without_a_store_nothing_tells_a_run_from_one_that_was_deleted() -> None:
    assert runs.find_instance({"ti": SimpleNamespace(try_number=1)}) is None


@pytest.mark.parametrize("at_work", [0, 2])
def test_before_airflow_3_2_a_dag_with_runs_is_not_paused(at_work: int) -> None:
    asked: list[tuple[str, list[str]]] = []

    def get_dr_count(dag_id: str, states: list[str]) -> int:
        asked.append((dag_id, states))
        return at_work

    assert runs._has_active_dag({"ti": SimpleNamespace(get_dr_count=get_dr_count)}, "other") is bool(at_work)
    assert asked == [("other", ["queued", "running"])]
