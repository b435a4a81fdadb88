"""What is installed on this machine: the Spark of PySpark, and the Java that Spark and the embedded broker need.

Nothing here imports PySpark.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from onceonly.errors import InvalidPipeline

OLDEST_JAVA = 17  # that works


def spark_home() -> Path:
    """Return the folder of Spark in the installed PySpark: its commands and jars.

    Raises:
        InvalidPipeline: PySpark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise InvalidPipeline(
            "Spark cannot be used in this environment.",
            "Not installed: pyspark.",
            "Install it: pip install 'onceonly[spark]'. Nothing was started.",
            code="pyspark-missing",
        )
    return Path(spec.origin).parent


def java_command() -> str | None:
    """Return the java of JAVA_HOME, else the one on the path; None: there is none."""
    java_home = os.environ.get("JAVA_HOME")
    return shutil.which(f"{java_home}/bin/java" if java_home else "java")


def java_version(command: str) -> int:
    """Return the major version of that java; 0 where it does not tell one."""
    output = subprocess.run([command, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    match = re.search(r'version "(\d+)', output)
    return int(match[1]) if match else 0
