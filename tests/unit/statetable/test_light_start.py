"""What a command loads before it answers: `onceonly status` on an object store needs no Arrow to know its storage."""

from __future__ import annotations

import subprocess
import sys

LOADED = """
import sys
from onceonly.statetable import location
location.check_atomic("s3://bucket/state")
print(*sorted({"pyarrow", "pandas", "pyspark", "airflow", "boto3"} & set(sys.modules)))
"""


def test_a_look_at_the_storage_loads_no_engine() -> None:
    child = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert child.stdout.split() == []
