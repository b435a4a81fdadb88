"""Starting a process that runs or repairs an interval, and dies or stops meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from integration.programs.children import output, start, without_spark
from integration.projects.repairs import Shop

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "tests" / "integration" / "victims" / "mortal_repairs.py"


def child(shop: Shop, at: str, *works: dict[str, Any], fault: str = "dies") -> subprocess.Popen[str]:
    """It meets the fault at that point, or at those numbers of points; see the script."""
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src"), shop.home])
    env = {**without_spark(os.environ), **shop.env, "PYTHONPATH": path}
    return start(str(SCRIPT), json.dumps(asdict(shop)), fault, at, json.dumps(works), env=env)


def live(shop: Shop, *works: dict[str, Any]) -> None:
    """One that lives, and does each of these."""
    process = child(shop, "0,0", *works)
    printed = output(process)
    assert process.returncode == 0, printed


def is_stopped(process: subprocess.Popen[str]) -> bool:
    return psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
