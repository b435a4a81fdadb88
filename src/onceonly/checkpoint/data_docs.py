"""Which page of the Data Docs of a verdict shows the values that failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onceonly.checkpoint.model import Checkpoint

INDEX = "index.html"  # every check, with a link to the page of each sink that has a suite
SUITE_CHECK_PREFIX = "expect_"  # of what a suite checks: bounds on numbers of rows are on no page of a sink


def find_page(checkpoint: Checkpoint, verdict: Mapping[str, Any]) -> str:
    """Return the name of the page of the only sink whose suite has a check that is not ok; else the index."""
    sinks = []
    for sink, report in verdict.get("sinks", {}).items():
        if sink in (checkpoint.gate or {}).get("suites", {}) and any(map(_has_failed_in_suite, report["checks"])):
            sinks.append(sink)
    return f"{sinks[0]}.html" if len(sinks) == 1 else INDEX


def _has_failed_in_suite(check: Mapping[str, Any]) -> bool:
    return not check["ok"] and str(check["what"]).startswith(SUITE_CHECK_PREFIX)


def find_address(checkpoint: Checkpoint) -> str:
    """Return the address of that page of the current verdict's Data Docs; empty where it has none."""
    stored = str((checkpoint.verdict or {}).get("docs") or "")
    if checkpoint.verdict is None or not stored.endswith(f"/{INDEX}"):
        return stored
    return f"{stored.removesuffix(INDEX)}{find_page(checkpoint, checkpoint.verdict)}"
