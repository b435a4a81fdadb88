"""python -m benchmarks.page: every number on a page comes from benchmarks/results/*.json.

A page says where: `<!-- value NAME: MEASURE -->…<!-- /value -->`, and in docs/benchmarks.md whole sections. What stands
between two marks is written here, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks import arithmetic, charts, goals, results
from benchmarks.figures import plain
from benchmarks.results import RATIO

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
IMAGES = ROOT / "docs" / "images"
MARK = re.compile(
    r"<!-- (?P<kind>value|loads|sections|goals|arithmetic)(?: (?P<of>[^>]*?))? -->.*?<!-- /(?P=kind) -->", re.DOTALL
)
ORDER = (
    "kafka_sink", "flink", "flink_large", "hot_path", "checkpoint", "files", "postgres", "second_sink", "growth",
    "partitions", "memory", "targets", "correct_day", "state_table", "pipelines", "many_pipelines", "recovery",
    "history", "cold_start", "first_row", "demo",
)  # fmt: skip
BEFORE = results.RESULTS / "before"  # the same benchmarks of an earlier version, where a change is to be shown


def render() -> dict[Path, str]:
    """Every file that this script writes, as it should be."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("packages/*/README.md"))]
    pages = {page: filled(page.read_text()) for page in files}
    return pages | {IMAGES / file: picture for file, picture in _pictures()}


def filled(text: str) -> str:
    return MARK.sub(lambda mark: _marked(mark["kind"], mark["of"], _content(mark["kind"], mark["of"])), text)


def _marked(kind: str, of: str | None, content: str) -> str:
    return f"<!-- {kind}{f' {of}' if of else ''} -->{content}<!-- /{kind} -->"


def _content(kind: str, of: str | None) -> str:
    match kind:
        case "value":
            return _value(*(of or "").split(": ", 1))
        case "loads":
            return _loads((of or "").split(", "))
        case "sections":
            return "".join(_section(name) for name in _in_order())
        case "arithmetic":
            return f"\n\n{arithmetic.table()}\n\n"
    return _goals()


def _in_order() -> list[str]:
    """Those that readers look for first, then the others."""
    return sorted(results.names(), key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def _value(name: str, measure: str) -> str:
    row = results.find((results.read(name) or {"rows": []})["rows"], measure)
    return plain(row["median"]) if row else "not measured"


def _loads(names: list[str]) -> str:
    """Of the machine, at the start and at the end of these benchmarks: the least and the most."""
    found = [result for name in names if (result := results.read(name))]
    ends = [load for result in found for load in (result["machine"]["load"][0], result["load_after"][0])]
    return f"{min(ends):.1f} to {max(ends):.1f}" if ends else "not measured"


# ---- goals


def _goals() -> str:
    lines = ["| | goal | measured | |", "| --- | --- | --- | --- |"]
    lines += [f"| {goal.what} | {goal.text} | {_measured(goal)} |" for goal in goals.GOALS]
    picture = "![Each measure as a share of its goal](images/bench-goals.svg)\n\n" if list(_shares()) else ""
    return "\n\n" + picture + "\n".join(lines) + "\n\n"


def _measured(goal: goals.Goal) -> str:
    found = _found(goal)
    if found is None:
        return "not measured | "
    unit = "" if found["unit"] == RATIO else f" {found['unit']}"
    link = f"[{plain(found['median'])}{unit}](#{_anchor(goal.name)})"
    return f"{link} | {_verdict(goal, found['median'])}"


def _found(goal: goals.Goal) -> Mapping[str, Any] | None:
    return results.find((results.read(goal.name) or {"rows": []})["rows"], goal.measure)


def _verdict(goal: goals.Goal, found: float) -> str:
    if goal.met(found):
        return "met"
    if not goal.bound:
        return "**missed**"
    share = f"{100 * goal.missed_by(found):,.0f}"
    return f"**missed** by {'less than 1' if share == '0' else share} %"


def _shares() -> Iterator[tuple[str, float, str]]:
    for goal in goals.GOALS:
        row = _found(goal)
        if row is not None and goal.bound and row["median"]:
            share = goal.bound / row["median"] if goal.at_least else row["median"] / goal.bound
            unit = "" if row["unit"] == RATIO else f" {row['unit']}"
            yield goal.what.replace("`", ""), share, f"{plain(row['median'])}{unit} ({goal.text})"


# ---- one benchmark


def _section(name: str) -> str:
    found, before = results.read(name) or {}, results.read(name, BEFORE)
    parts = [f"## {found['title']}", found["how"], _table(name, found["rows"], before)]
    parts += [f"![{measure}](images/{file})" for file, measure, _ in _charts(name)]
    parts += [" ".join(found["notes"])] if found["notes"] else []
    parts += [_settings(found["settings"])] if found["settings"] else []
    parts.append(_when(found) + (f" Before: {_when(before)}" if before else ""))
    return "\n\n" + "\n\n".join(parts) + "\n"


def _table(name: str, rows: list[dict[str, Any]], before: Mapping[str, Any] | None) -> str:
    ends = ["before", "goal", ""] if before else ["goal", ""]
    lines = ["| " + " | ".join(["", "median", "from … to", "runs", *ends]) + " |"]
    lines.append("| --- " * (4 + len(ends)) + "|")
    for row in rows:
        goal = goals.of(name, row) if "x" not in row else None
        last = [goal.text, _verdict(goal, row["median"])] if goal else ["", ""]
        spread = f"{plain(row['min'])} … {plain(row['max'])}" if len(row["runs"]) > 1 else ""
        cells = [_label(row), _with_unit(row), spread, str(len(row["runs"]))]
        lines.append("| " + " | ".join([*cells, *([_then(row, before["rows"])] if before else []), *last]) + " |")
    return "\n".join(lines)


def _then(row: Mapping[str, Any], before: list[dict[str, Any]]) -> str:
    found = next((old for old in before if _label(old) == _label(row)), None)
    return _with_unit(found) if found else ""


def _label(row: Mapping[str, Any]) -> str:
    series = f", {row['series']}" if row.get("series") else ""
    return row["measure"] + series + (f", {plain(row['x'])}" if "x" in row else "")


def _with_unit(row: Mapping[str, Any]) -> str:
    return plain(row["median"]) + ("" if row["unit"] == RATIO else f" {row['unit']}")


def _settings(settings: Mapping[str, Mapping[str, str]]) -> str:
    lines = ["| peer | setting | value |", "| --- | --- | --- |"]
    lines += [f"| {peer} | `{key}` | {value} |" for peer, chosen in settings.items() for key, value in chosen.items()]
    return "\n".join(lines)


def _when(found: Mapping[str, Any]) -> str:
    on, versions = found["machine"], found["versions"]
    loads = f"{on['load'][0]:g} at the start, {found['load_after'][0]:g} at the end"
    named = ", ".join(f"{name} {number}" for name, number in versions.items())
    return (
        f"*{found['when']}, commit {found['commit']}, {on['cores']} cores ({on['processor']}), "
        f"{on['memory_gib']:g} GiB, {on['kernel']}, {on['disk']}; load {loads}; {named}.*"
    )


def _anchor(name: str) -> str:
    title = (results.read(name) or {"title": ""})["title"]
    return re.sub(r"\s", "-", re.sub(r"[^\w\- ]", "", title.lower()).strip())


# ---- charts


def _pictures() -> Iterator[tuple[str, str]]:
    for name in results.names():
        for file, _, picture in _charts(name):
            yield file, picture
    if shares := list(_shares()):
        yield "bench-goals.svg", charts.bars("Each measure as a share of its goal (less is better)", shares)


def _charts(name: str) -> Iterator[tuple[str, str, str]]:
    """File, title and picture for each measure that is a curve."""
    found, before = results.read(name) or {}, results.read(name, BEFORE) or {"rows": []}
    points = [row for row in found["rows"] if "x" in row]
    for number, (measure, rows) in enumerate(groupby(points, lambda row: row["measure"]), start=1):
        lines: dict[str, list[Any]] = {}
        for row in rows:
            lines.setdefault(row.get("series", ""), []).append(row)
        for row in before["rows"]:
            if "x" in row and row["measure"] == measure:
                lines.setdefault(f"{row.get('series', '')} before".strip(), []).append(row)
        named = {line or ("now" if len(lines) > 1 else ""): drawn for line, drawn in lines.items()}
        if not any(row["max"] for drawn in lines.values() for row in drawn):
            continue  # such as no failure at all
        unit = next(iter(lines.values()))[0]["unit"]
        yield f"bench-{name}-{number}.svg", measure, charts.curves(measure, found["x"], unit, named)


def main() -> None:
    for file, text in render().items():
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
    for old in set(IMAGES.glob("bench-*.svg")) - set(render()):
        old.unlink()


if __name__ == "__main__":
    main()
