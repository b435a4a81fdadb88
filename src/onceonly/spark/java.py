"""The Java of this machine, which Spark and the embedded broker need."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

OLDEST = 17


def command() -> str | None:
    """The java of JAVA_HOME, else the one on the path."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(f"{home}/bin/java" if home else "java")


def version(java: str) -> int:
    """Its major version; 0 where it does not tell one."""
    said = subprocess.run([java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    found = re.search(r'version "(\d+)', said)
    return int(found[1]) if found else 0
