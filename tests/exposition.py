"""Prometheus' text format, read by its own rules: what Prometheus would refuse is refused."""

from __future__ import annotations

import re

# Prometheus' docs, "Exposition formats": the grammar of a line of the text format.
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
LINE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (-?[0-9.]+)")


def parsed(text: str) -> dict[str, float]:
    """By name and labels; refuses what Prometheus would refuse."""
    found: dict[str, float] = {}
    known: dict[str, str] = {}  # metric -> type
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ")[2]
            assert name not in known, f"{name} is explained twice"
            known[name] = ""
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert (
                list(known)[-1] == name
                and kind in ("gauge", "counter")
                and (kind == "counter") == name.endswith("_total")
            )
            known[name] = kind
        elif not line.startswith("#"):  # a comment
            match = LINE.fullmatch(line)
            assert match, line
            assert list(known)[-1] == match[1], f"{line} does not stand with its like"
            key = f"{match[1]}{{{match[2] or ''}}}"
            assert key not in found, f"{key} is there twice"
            found[key] = float(match[3])
    assert not text or text.endswith("\n")
    return found
