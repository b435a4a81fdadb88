"""What `onceonly verify` says of a chaos run, as another process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onceonly.dev.chaos.project import PIPELINE

RIGHT, WRONG, UNKNOWN = 0, 6, 7  # exit codes
MAX_SHOWN = 20  # findings


@dataclass
class Verified:
    """Its answer.

    Args:
        text: Markdown.
        violations: what is wrong, and what should be known after minutes and is not.
    """

    text: str = ""
    violations: list[str] = field(default_factory=list)


def verify(project: Path, environment: Mapping[str, str], report: Path) -> Verified:
    """Let `onceonly verify --deep` compare everything, and write its report."""
    words = ["verify", PIPELINE, "--deep", "--json", "--report", str(report)]
    command = [sys.executable, "-m", "onceonly.dev.chaos.worker", "0", *words]
    result = subprocess.run(command, cwd=project, env=dict(environment), capture_output=True, text=True)
    return judge(result.returncode, result.stdout, result.stderr)


def judge(code: int, printed: str, errors: str = "") -> Verified:
    """Return what an exit code and the object that was printed mean."""
    if code not in (RIGHT, WRONG, UNKNOWN):
        return Verified("No answer.", [f"onceonly verify ended with {code}: {errors.strip()[-1000:]}"])
    data = json.loads(printed)
    verified = Verified(_describe(code, data))
    for finding in data["findings"]:
        if finding["judgement"] != "right":
            verified.violations.append(f"onceonly verify: {_describe_finding(finding)}")
    if code != RIGHT and not verified.violations:
        verified.violations.append(f"onceonly verify says '{data['judgement']}'")
    del verified.violations[MAX_SHOWN:]
    return verified


def _describe(code: int, data: Mapping[str, Any]) -> str:
    lines = [
        f"`onceonly verify {PIPELINE} --deep`: {data['judgement']} (exit code {code}); its report is `verify.md`.",
        "",
        "| what | right | wrong | can no longer be known |",
        "| --- | --- | --- | --- |",
    ]
    for subject in data["subjects"]:
        name = f"{subject['kind']} {subject['name']}".strip()
        counts = subject["counts"]
        lines.append(f"| {name} | {counts['right']} | {counts['wrong']} | {counts['unknown']} |")
    return "\n".join(lines)


def _describe_finding(finding: Mapping[str, Any]) -> str:
    epochs = f" epoch {finding['epochs']}" if finding["epochs"] else ""
    return f"{finding['kind']} {finding['name']}{epochs} [{finding['code']}] {finding['why']}"
