"""The Java of this machine, which Spark and the embedded broker need."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

OLDEST = 17


def command() -> str | None:
    """Return the java of JAVA_HOME, else the one on the path; None: there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(f"{home}/bin/java" if home else "java")


def version(java: str) -> int:
    """Return the major version of that command; 0 where it does not tell one."""
    output = subprocess.run([java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    match = re.search(r'version "(\d+)', output)
    return int(match[1]) if match else 0
