"""docs/api.md and what is public are the same: neither gains a name without the other."""

from __future__ import annotations

import ast
import re
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import onceonly
from onceonly.pipeline.sink_config import SinkConfig
from onceonly.pipeline.sources import SourceConfig

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text("utf-8")
NAME = re.compile(r"^::: (onceonly[\w.]*)$((?:\n {4}.*)*)", re.MULTILINE)
MEMBERS = re.compile(r"members: \[([\w, ]+)\]")
MODULES = (
    *("onceonly.airflow", "onceonly.windows", "onceonly.debezium"),
    *("onceonly.storage.manifests", "onceonly.sinks"),
)
# What a definition is stored as, and its parts by name: for authors of sinks, whose context has the pipeline.
OF_PIPELINE = {"sources", "sink", "state", "tables", "to_json", "from_json"}
OF_GATE = {"checks_freshness", "to_json", "from_json"}
# What Onceonly asks each kind of source and sink, beyond what it asks all of them.
OF_SOURCES = {"asset_uri", "counts", "place", "unstored_defaults", "word"}
OF_KAFKA_SINK = {"is_late"}


def list_entries() -> dict[str, set[str]]:
    """Return the members that the page lists of each name; none if it lists no members."""
    entries = {}
    for name, options in NAME.findall(PAGE):
        members = MEMBERS.search(options)
        entries[name] = set(members[1].split(", ")) if members else set()
    return entries


def list_classes() -> list[str]:
    return [name for name in onceonly.__all__ if not issubclass(getattr(onceonly, name), Exception)]


def list_public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_page_has_every_name_of_the_package() -> None:
    on_page = {name.removeprefix("onceonly.") for name in list_entries() if re.fullmatch(r"onceonly\.[A-Z]\w+", name)}
    assert on_page == set(list_classes())
    assert "onceonly.errors" in list_entries()  # with all errors


@pytest.mark.parametrize("name", MODULES)
def test_page_has_every_name_of_a_module(name: str) -> None:
    module = import_module(name)
    assert list_entries()[name] == set(module.__all__)
    assert all(hasattr(module, public) for public in module.__all__)


def test_page_has_no_other_module() -> None:
    others = {"onceonly.testing", "onceonly.testing.contract", "onceonly.errors"}
    others |= {"onceonly.testing.history", "onceonly.testing.history.recorders"}
    assert {name for name in list_entries() if name.islower()} == {*MODULES, *others}


@pytest.mark.parametrize("name", list_classes())
def test_class_has_no_public_name_that_nobody_calls(name: str) -> None:
    """Fields are for users; Onceonly calls the rest, which is the same for all sinks, and for all sources."""
    declared = getattr(onceonly, name)
    assert is_dataclass(declared)
    names = list_public(declared) - {field.name for field in fields(declared)}
    if issubclass(declared, SinkConfig):
        names -= list_public(SinkConfig) | {"kind", "writer"}
    elif name.endswith("Source"):
        names -= list_public(SourceConfig) | {"kind"} | OF_SOURCES
    names -= {"Pipeline": OF_PIPELINE, "Gate": OF_GATE, "KafkaSink": OF_KAFKA_SINK}.get(name, set())
    assert names == set()


@pytest.mark.parametrize("name", [name for name in MODULES if name not in ("onceonly.airflow", "onceonly.sinks")])
def test_module_has_no_public_function_beside_its_names(name: str) -> None:
    module = import_module(name)
    assert module.__file__
    functions = {
        node.name
        for node in ast.parse(Path(module.__file__).read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    assert {function for function in functions if not function.startswith("_")} <= set(module.__all__)
