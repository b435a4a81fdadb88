"""The package as people have it: a wheel of this checkout, in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from integration import dependencies
from patience import PATIENCE

ROOT = Path(__file__).parents[3]


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout in that folder, and return its path."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE)
    return next(folder.glob("*.whl"))


def make_environment(folder: Path) -> Path:
    """Make an environment without packages in that folder, and return its Python."""
    uv("venv", "--python", sys.executable, str(folder))
    return folder / "bin" / "python"


def link_dependencies(python: Path) -> None:
    """Give that environment what this one has beside Onceonly, Airflow included."""
    dependencies.link(next(python.parents[1].glob("lib/python*/site-packages")))
    airflow = python.with_name("airflow")
    airflow.write_text(f"#!{python}\nfrom airflow.__main__ import main\n\nmain()\n")
    airflow.chmod(0o755)


def install_offline(python: Path, wheel: Path) -> None:
    """Install the wheel; its dependencies are links to those of this environment."""
    link_dependencies(python)
    uv("pip", "install", "--offline", "--python", str(python), "--no-deps", str(wheel))


def uv(*command: str) -> None:
    done = subprocess.run([sys.executable, "-m", "uv", "--quiet", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
