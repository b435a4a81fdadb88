"""`python -m onceonly.testing.history FILE`: print what is wrong with a history; exit code 1: something is."""

from __future__ import annotations

import sys
from pathlib import Path

from onceonly.testing.history.checker import find_anomalies
from onceonly.testing.history.model import History


def main(path: str) -> int:
    """Check the file, and return the exit code."""
    history = History.load(Path(path))
    anomalies = find_anomalies(history)
    records = sum(len(read.records) for read in history.reads)
    lines = [f"{len(history.sends)} sends, {len(history.reads)} reads of {records} records: {len(anomalies)} anomalies"]
    lines += map(str, anomalies)
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if anomalies else 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
