"""What a benchmark found, as benchmarks/results/NAME.json: machine, versions, settings, and every run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results"
NUMBERS = re.compile(r"\[[^\[\]{}\"]*\]")  # a list of them stands in one line
RATIO = "ratio"  # the unit of a row that compares two others


@dataclass(frozen=True)
class Row:
    """One measure: every run of it, in order.

    Args:
        series, x: the row is a point of a curve; `series` names the line, where there are several.
        of: a ratio of these two, round by round.
        value: what `runs` do not give by their median, as a worst case.
    """

    measure: str
    unit: str
    runs: Sequence[float]
    series: str = ""
    x: float | None = None
    of: tuple[str, str] | None = None
    value: float | None = None

    def to_json(self) -> dict[str, Any]:
        chosen = median(self.runs) if self.value is None else self.value
        found = {"median": chosen, "min": min(self.runs), "max": max(self.runs), "runs": list(self.runs)}
        rounded = {key: _rounded(value) for key, value in found.items()}
        place = {key: value for key, value in (("series", self.series), ("x", self.x), ("of", self.of)) if value}
        return {"measure": self.measure, "unit": self.unit, **place, **rounded}


@dataclass(frozen=True)
class Result:
    """One benchmark.

    Args:
        how: what was done, in a sentence or two.
        x: what the curves' x axis counts.
        settings: by peer, what was set; nothing that names this machine.
        notes: sentences on what the numbers show, limits among them.
    """

    title: str
    how: str
    rows: Sequence[Row]
    x: str = ""
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "how": self.how,
            "x": self.x,
            "settings": {peer: dict(settings) for peer, settings in self.settings.items()},
            "notes": list(self.notes),
            "rows": [row.to_json() for row in self.rows],
        }


def ratio(ours: Row, theirs: Row) -> Row:
    """Ours ÷ theirs round by round, of rows whose runs alternated: what slows a whole round down is in neither."""
    pairs = [one / other for one, other in zip(ours.runs, theirs.runs, strict=True)]
    names = (ours.measure, theirs.measure)
    return Row(" ÷ ".join(names), RATIO, pairs, of=names)


def write(name: str, result: Result, about: Mapping[str, Any]) -> Path:
    """Replace the benchmark's own file, and no other."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.json"
    text = json.dumps({"name": name, **about, **result.to_json()}, indent=1, ensure_ascii=False)
    file.write_text(NUMBERS.sub(lambda found: " ".join(found[0].split()), text) + "\n")
    return file


def read(name: str, folder: Path = RESULTS) -> dict[str, Any] | None:
    file = folder / f"{name}.json"
    found: dict[str, Any] | None = json.loads(file.read_text()) if file.exists() else None
    return found


def names() -> list[str]:
    return sorted(file.stem for file in RESULTS.glob("*.json"))


def find(rows: Iterable[Mapping[str, Any]], measure: str) -> Mapping[str, Any] | None:
    return next((row for row in rows if row["measure"] == measure), None)


def _rounded(value: Any) -> Any:
    """Four significant digits: more is noise."""
    return [_rounded(each) for each in value] if isinstance(value, list) else float(f"{value:.4g}")
