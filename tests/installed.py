"""What an installer leaves beside a package, by which Python finds its entry points."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_project(text: str) -> dict[str, Any]:
    """Return the table `project` of a pyproject.toml."""
    project: dict[str, Any] = tomllib.loads(text)["project"]
    return project


def write_metadata(folder: Path, project: Mapping[str, Any]) -> None:
    """Write the metadata of a package into the folder in which its modules are."""
    metadata = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, entries in project["entry-points"].items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {value}" for name, value in entries.items()]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
