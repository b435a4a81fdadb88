"""What the pages say was measured is what benchmarks/results/*.json says; no number is typed by hand."""

from __future__ import annotations

import json
import random
import re
import socket
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks import charts, page, results
from benchmarks.__main__ import MODULES
from benchmarks.figures import plain, short
from benchmarks.goals import GOALS, Goal
from benchmarks.ratio import against, alternate
from benchmarks.results import Result, Row, ratio

ROOT = Path(__file__).parents[2]
FILES = sorted(results.RESULTS.rglob("*.json"))


def test_the_pages_say_what_was_measured() -> None:
    """Otherwise: python -m benchmarks.page."""
    for file, text in page.render().items():
        assert file.read_text() == text, f"{file.name} is older than benchmarks/results: python -m benchmarks.page"


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_can_be_called(name: str) -> None:
    assert callable(getattr(import_module(f"benchmarks.{MODULES[name]}"), name))


def test_what_was_not_measured_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    text = "<!-- value none: a ÷ b -->0.81<!-- /value --> and <!-- loads none -->3<!-- /loads -->"
    assert page.filled(text).count("not measured") == 2


def test_no_picture_is_left_over() -> None:
    assert set(page.IMAGES.glob("bench-*")) <= set(page.render())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_result_says_how_it_came_about(file: Path) -> None:
    found = json.loads(file.read_text())
    assert found["name"] == file.stem
    assert {"title", "how", "when", "commit", "machine", "versions", "load_after", "settings"} <= set(found)
    assert {"cores", "memory_gib", "kernel", "disk", "load"} <= set(found["machine"])
    for row in found["rows"]:
        assert row["min"] <= row["median"] <= row["max"] and row["runs"], row["measure"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_result_names_neither_this_machine_nor_its_folders(file: Path) -> None:
    text = file.read_text()
    assert not re.search(r'"/(?!dev/)\w|/tmp/|/home/|/root/|/work/', text)
    assert socket.gethostname() not in text


def test_every_ratio_is_that_of_the_medians_beside_it() -> None:
    for file in FILES:
        rows = {row["measure"]: row for row in json.loads(file.read_text())["rows"]}
        for row in (row for row in rows.values() if "of" in row):
            ours, theirs = (rows[name]["runs"] for name in row["of"])
            rounds = [one / other for one, other in zip(ours, theirs, strict=False)]
            possible = (median(rounds), median(ours) / median(theirs))
            assert min(abs(row["median"] / each - 1) for each in possible) < 0.01, row["measure"]


def test_the_goals_name_each_measure_once() -> None:
    named = [(goal.name, goal.measure) for goal in GOALS]
    assert len(set(named)) == len(named)


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: f"{goal.name}: {goal.measure}")
def test_a_goal_is_compared_with_what_was_measured(goal: Goal) -> None:
    """A measure by another name would read as "not measured"."""
    file = results.RESULTS / f"{goal.name}.json"
    if file.exists():
        assert goal.measure in {row["measure"] for row in json.loads(file.read_text())["rows"]}


@pytest.mark.parametrize(
    ("bound", "at_least", "found", "met", "missed"),
    [
        (2.0, False, 2.0, True, 0),
        (2.0, False, 3.0, False, 0.5),
        (2.0, True, 1.0, False, 0.5),
        (2.0, True, 2.0, True, 0),
    ],
)
def test_a_goal(bound: float, at_least: bool, found: float, met: bool, missed: float) -> None:
    goal = Goal("it", "name", "measure", bound, at_least)
    assert (goal.met(found), goal.missed_by(found)) == (met, missed)


def test_sides_take_turns_and_the_first_is_compared_with_each_other() -> None:
    order: list[str] = []
    rows = against(alternate({name: lambda name=name: order.append(name) for name in "abc"}, rounds=2, unit="ms"))  # type: ignore[misc]
    assert "".join(order) == "cba" + "abc" + "cba"
    assert [row.measure for row in rows] == ["a", "b", "c", "a ÷ b", "a ÷ c"]
    assert all(len(row.runs) == 2 for row in rows)


def test_a_ratio_is_taken_round_by_round() -> None:
    found = ratio(Row("a", "s", [1, 2, 9]), Row("b", "s", [2, 1, 3])).to_json()
    assert (found["median"], found["min"], found["max"], found["of"]) == (2.0, 0.5, 3.0, ("a", "b"))


def test_a_result_replaces_its_own_file_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    for name in ("one", "two", "one"):
        results.write(name, Result("A title", "So.", [Row("a", "s", [1.23456, 2])]), {"when": "now"})
    found: Any = json.loads((tmp_path / "one.json").read_text())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["one.json", "two.json"]
    assert found["rows"] == [
        {"measure": "a", "unit": "s", "median": 1.617, "min": 1.235, "max": 2.0, "runs": [1.235, 2.0]}
    ]


def test_a_curve_is_drawn_with_a_line_for_each_series() -> None:
    points = [{"x": x, "median": x * 2, "min": x, "max": x * 3} for x in (1, 10, 100)]
    drawn = ElementTree.fromstring(charts.curves("A <title>", "rows", "ms", {"ours": points, "theirs": points[:1]}))
    assert drawn.attrib["aria-label"] == "A <title>"
    assert len(drawn.findall("{http://www.w3.org/2000/svg}circle")) == 4


def test_bars_are_cut_off_at_the_edge() -> None:
    drawn = charts.bars("Goals", [("met", 0.5, "1 s"), ("far off", 400.0, "800 s")])
    edges = [
        float(x) + float(w) for x, w in re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="18"', drawn)
    ]
    assert len(edges) == 2 and max(edges) <= charts.WIDTH


@pytest.mark.parametrize(
    ("value", "text"), [(12345.6, "12,346"), (28.71, "28.7"), (0.814, "0.81"), (3.0, "3"), (0.00412, "0.0041")]
)
def test_numbers_as_people_read_them(value: float, text: str) -> None:
    assert plain(value) == text


@pytest.mark.parametrize(("value", "text"), [(5, "5"), (20_000, "20k"), (1.5e6, "1.5M"), (2e9, "2G")])
def test_short_numbers(value: float, text: str) -> None:
    assert short(value) == text


def test_sides_that_take_seconds_have_their_cpu_beside_them() -> None:
    rows = against(alternate({"a": lambda: sum(range(10_000)), "b": lambda: sum(range(10_000))}, rounds=1))
    assert [row.measure for row in rows][:5] == ["a", "b", "a, CPU", "b, CPU", "a ÷ b"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_title_makes_the_same_anchor_everywhere(file: Path) -> None:
    """GitHub keeps each space as a dash, mkdocs joins them: a sign between two spaces would make two of them."""
    assert re.fullmatch(r"\w+(?:[:,]? \w+)*", json.loads(file.read_text())["title"])


@pytest.mark.parametrize("seed", range(20))
def test_no_text_of_the_goals_crosses_another_or_their_line(seed: int) -> None:
    """Also with names and figures of any length, and shares beyond the picture."""
    chance = random.Random(seed)
    rows = []
    for _ in range(chance.randint(1, 30)):
        words = "12.3 ms (≤ 10 ms)"[: chance.randint(4, 17)]
        rows.append(("n" * chance.randint(1, 55), 10 ** chance.uniform(-2, 2), words))
    check_layout(charts.bars("Goals", rows))


def test_no_text_of_the_published_goals_crosses_another_or_their_line() -> None:
    check_layout((ROOT / "docs" / "images" / "bench-goals.svg").read_text("utf-8"))


def check_layout(picture: str) -> None:
    drawn = ElementTree.fromstring(picture)
    texts = drawn.findall("{http://www.w3.org/2000/svg}text")[1:-1]  # without the title and the words below the line
    (line,) = drawn.findall("{http://www.w3.org/2000/svg}path")
    goal = float(re.match(r"M([\d.]+)", line.attrib["d"])[1])  # type: ignore[index]
    bars = [(float(bar.attrib["x"]), float(bar.attrib["width"])) for bar in drawn.findall("{*}rect")[1:]]
    bars_start, bars_end = min(x for x, _ in bars), max(x + width for x, width in bars)
    assert texts
    for text in texts:
        end = float(text.attrib["x"])
        start = end - charts.text_width(text.text or "")
        assert text.attrib["text-anchor"] == "end"
        assert start >= 0 and end <= charts.WIDTH
        assert end <= bars_start or start >= max(bars_end, goal)
