"""A page as a reader follows it: every block in order, in one shell, and what each one prints."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from patience import PATIENCE

ROOT = Path(__file__).parents[3]
NOT_RUN = "<!-- not run by the test -->"
BLOCK = re.compile(rf"^({re.escape(NOT_RUN)}\n)?```sh\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
VARIES = (
    (re.compile(r"^… .*, since [\d:]+ UTC\n", re.MULTILINE), ""),  # what a slow machine waits for
    (re.compile(r"\b\d+(\.\d+)? (s|min)\b"), "N s"),  # how long it took, how long ago it was
    (re.compile(r"\b[\d.]+ (B|kB)\b"), "SIZE"),
    (re.compile(r"127\.0\.0\.1:\d+|localhost:\d+"), "ADDRESS"),
    (re.compile(r"\S*/?\.onceonly/"), ".onceonly/"),
    (re.compile(r"[^\S\n]+"), " "),  # columns are as wide as what varies
)


@dataclass(frozen=True)
class Block:
    commands: str
    shown: str | None


def blocks(page: str) -> list[Block]:
    """The blocks of a page below docs/."""
    found = BLOCK.findall((ROOT / "docs" / page).read_text())
    return [Block(commands, shown or None) for skipped, commands, shown in found if not skipped]


def same(shown: str, printed: str) -> bool:
    """`…` in what is shown stands for the rest of a line; alone in a line, for any lines."""
    lines = [r"(.*\n)*" if line == "…" else _pattern(line) for line in _normalised(shown).splitlines()]
    return re.fullmatch("".join(lines), _normalised(printed) + "\n") is not None


def _pattern(line: str) -> str:
    return re.escape(line).replace("…", ".*") + r"\n"


def _normalised(text: str) -> str:
    for pattern, word in VARIES:
        text = pattern.sub(word, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def environment() -> dict[str, str]:
    """A shell in which nothing is set but what the tutorial's step 1 sets."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("ONCEONLY_", "SPARK_", "COLUMNS"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"
    return {**own, "PATH": path, "ONCEONLY_JARS": str(ROOT / ".jars"), "PYTHONUNBUFFERED": "1"}


def script(blocks: Sequence[Block], folder: Path) -> str:
    """All blocks for one shell, the output of each in a file of its own; the first that fails ends it."""
    parts = ["set -o pipefail"]
    for number, block in enumerate(blocks):
        commands = re.sub(r"^mkdir \w+\n", "", block.commands)  # the folder of the project is there, with its services
        parts.append(f"{{ set -e\n{commands}set +e\n}} > {folder}/{number}.txt 2>&1")
    return "\n".join(parts)


def run(text: str, folder: Path, seconds: float) -> int:
    shell = subprocess.Popen(["bash", "-c", text], cwd=folder, env=environment(), start_new_session=True)
    try:
        return shell.wait(seconds)
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()


def check(blocks: Sequence[Block], folder: Path) -> None:
    """Run all blocks in `folder`, and compare what each prints with what the page shows."""
    code = run(script(blocks, folder), folder, len(blocks) * PATIENCE / 4)
    done = [(block, (folder / f"{number}.txt")) for number, block in enumerate(blocks)]
    printed = [(block, file.read_text()) for block, file in done if file.exists()]
    wrong = [(block, output) for block, output in printed if block.shown is not None and not same(block.shown, output)]
    assert not wrong, "\n".join(f"{block.commands}\nprinted:\n{output}" for block, output in wrong)
    assert (code, len(printed)) == (0, len(done)), printed[-1]
