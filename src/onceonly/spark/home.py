"""The folder of Spark in the installed PySpark: its commands and jars."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from onceonly.errors import InvalidPipeline


def spark_home() -> Path:
    """Return the folder of Spark in the installed PySpark, found without importing it.

    Raises:
        InvalidPipeline: PySpark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise InvalidPipeline(
            "Spark cannot be used in this environment.",
            "Not installed: pyspark.",
            "Install it: pip install 'onceonly[spark]'. Nothing was started.",
        )
    return Path(spec.origin).parent
