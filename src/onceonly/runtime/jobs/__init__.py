"""The programs that spark-submit runs: a file each, found beside this one wherever the package is installed."""

from pathlib import Path


def program(step: str) -> Path:
    """Return the file of a step. On a cluster, the driver's machine has the package at the same path."""
    return Path(__file__).with_name(f"{step}.py")
