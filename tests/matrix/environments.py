"""A cell's environment, in .matrix/NAME: Python with its packages, and jars. What is there is used again."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from matrix.cells import Cell
from onceonly.spark import jars, jvm

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".matrix"
CONSTRAINTS = ROOT / "constraints"
SETTINGS = Path(__file__).with_name("ivysettings.xml")
UV = Path(sys.executable).with_name("uv")
FETCH = "import pathlib, sys; from onceonly.spark import jars; jars.fetch(pathlib.Path(sys.argv[1]), ['spark'])"
TAIL = 3000


class NotInstalled(Exception):
    """The cell's environment cannot be had here; why, in one sentence."""


@dataclass(frozen=True)
class Environment:
    cell: Cell

    @property
    def folder(self) -> Path:
        return CACHE / self.cell.packages

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    @property
    def jars(self) -> Path:
        return CACHE / self.cell.name / "jars"

    def make(self) -> None:
        """Raises NotInstalled."""
        if self.cell.missing:
            raise NotInstalled(self.cell.missing)
        self.folder.mkdir(parents=True, exist_ok=True)
        wanted = constraints(self.cell)
        made = self.folder / "made-of.txt"
        if not made.exists() or made.read_text() != wanted.read_text():
            self._install(wanted)
            made.write_text(wanted.read_text())
        self._fetch_jars()

    def versions(self) -> dict[str, str]:
        """What is really there."""
        program = (
            "import json, platform; from importlib.metadata import distributions as d; "
            "print(json.dumps({'python': platform.python_version()} | {x.name.lower(): x.version for x in d()}))"
        )
        done = subprocess.run([self.python, "-c", program], check=True, capture_output=True, text=True)
        found: dict[str, str] = json.loads(done.stdout)
        return found

    def _install(self, wanted: Path) -> None:
        run([UV, "venv", "--clear", "--quiet", "--python", interpreter(self.cell.python), self.folder / "venv"])
        run([UV, "pip", "sync", "--quiet", "--python", self.python, wanted])
        run([UV, "pip", "install", "--quiet", "--python", self.python, "--no-deps", "--editable", ROOT])

    def _fetch_jars(self) -> None:
        self.jars.mkdir(parents=True, exist_ok=True)
        cache = CACHE / "ivy"
        cache.mkdir(exist_ok=True)
        if not (self.jars / "cache").exists():
            (self.jars / "cache").symlink_to(cache)
        run([self.python, "-c", FETCH, self.jars])
        if not (self.jars / "broker").exists():
            broker(self.cell, self.jars / "broker", cache)


def broker(cell: Cell, into: Path, cache: Path) -> None:
    """The jars of the cell's broker: today's, or a revision with what its POM names."""
    arriving = into.with_name("arriving")
    shutil.rmtree(arriving, ignore_errors=True)
    today = Path(os.environ.get("ONCEONLY_JARS", ROOT / ".jars")) / "broker"
    if cell.broker is None:
        shutil.copytree(today, arriving)
    else:
        _retrieve(cell.broker, arriving, cache)
        for jar in today.glob("slf4j-simple-*.jar"):
            shutil.copy(jar, arriving)
    arriving.rename(into)


def _retrieve(revision: str, into: Path, cache: Path) -> None:
    command = [
        jvm.java_command(),
        f"-Divy.default.ivy.user.dir={cache}",
        "-jar",
        jars.ivy_jar(),
        "-cache",
        cache,
    ]
    command += ["-settings", SETTINGS, "-dependency", "org.apache.kafka", "kafka_2.13", revision]
    run([*command, "-confs", "default", "-retrieve", f"{into}/[artifact]-[revision](-[classifier]).[ext]"])


def constraints(cell: Cell) -> Path:
    """constraints/NAME.txt, also for pip. Made by uv where it is missing; what need not differ is today's."""
    file = CONSTRAINTS / f"{cell.packages}.txt"
    if not file.exists():
        CONSTRAINTS.mkdir(exist_ok=True)
        draft, pins = CACHE / cell.packages / "draft.txt", CACHE / cell.packages / "pins.in"
        draft.write_text("".join(re.findall(r"^\S+==.*\n", (ROOT / "requirements.lock").read_text(), re.M)))
        pins.write_text("\n".join(cell.pins) + "\n")
        extras = [part for extra in cell.extras for part in ("--extra", extra)]
        command = [UV, "pip", "compile", ROOT / "pyproject.toml", pins, *extras, "--python-version", cell.python]
        run([*command, "-o", draft, "--no-emit-index-url", "--no-annotate", "--no-header", "--quiet"])
        file.write_text(f"# made by `make matrix`: what its cell {cell.packages} ran with\n{draft.read_text()}")
    return file


def interpreter(version: str) -> str:
    """An interpreter of that series: on the path, or among those of pyenv or uv."""
    known = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions").glob(f"{version}.*"))
    return str(known[-1] / "bin" / "python") if known else version


def run(command: list[object]) -> None:
    """Raises NotInstalled with the end of what it printed."""
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise NotInstalled(done.stdout[-TAIL:].strip())
