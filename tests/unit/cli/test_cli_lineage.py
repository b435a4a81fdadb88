"""onceonly lineage: what the rows of a checkpoint stand for, as a tree and as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from unit import tables
from unit.chain import TEN, Chain
from unit.filechain import FileChain

from onceonly.cli import main

TREE = """\
second epoch 2  [2013-01-01T12:00:00Z, 2013-01-01T12:10:00Z), 10 rows
└── lake: versions 2, by sink 'lake' of first
    └── first epoch 2  [2013-01-01T12:00:00Z, 2013-01-01T12:10:00Z), 10 rows
        └── flights partition 0: 0 to 9
"""
OLD = "first epoch 1  [2013-01-01T12:00:00Z, 2013-01-01T12:10:00Z), 10 rows, replaced by epoch 2"


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chain:
    return run_twice(tmp_path, monkeypatch, Chain)


def run_twice(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Chain]) -> Chain:
    monkeypatch.setattr(tables, "make", tables.real)
    monkeypatch.setenv("ONCEONLY_STATE", str(folder / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    made = kind(folder, "interval")
    made.put(*range(15))
    for request in (None, "again"):
        made.run(made.first, TEN, request)
        made.run(made.second, TEN, request)
    return made


def lineage(*args: Any) -> str:
    """What it prints, without the line that names the state table."""
    result = CliRunner().invoke(main, ["lineage", *map(str, args)])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("State table: "))


def test_the_tree_down_to_the_topic(chain: Chain) -> None:
    assert lineage("second") == TREE
    assert OLD in lineage("second", "--checkpoint", 1)


def test_through_a_folder_it_is_told_by_decisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_twice(tmp_path, monkeypatch, FileChain)
    assert lineage("second") == TREE.replace("versions", "decisions")


def test_who_has_read_it(chain: Chain) -> None:
    assert lineage("first").endswith("read by second epoch 2\n")
    assert "read by second epoch 1" in lineage("first", "--checkpoint", 1)


def test_as_json(chain: Chain) -> None:
    found = json.loads(lineage("second", "--json"))
    (read,) = found["reads"]
    assert (found["epoch"], read["published_by"], read["partitions"]) == (2, "first", {"0": [2, 3]})
    (before,) = read["checkpoints"]
    assert before["reads"][0]["partitions"] == {"0": [0, 10]}


def test_on_what_a_checkpoint_stands_is_shown_with_it(chain: Chain) -> None:
    described = CliRunner().invoke(main, ["describe", "second", "2"]).stdout
    assert re.search(r"^  after +first epoch 2$", described, re.MULTILINE)
    assert json.loads(CliRunner().invoke(main, ["describe", "second", "2", "--json"]).stdout)["after"] == {"first": [2]}
