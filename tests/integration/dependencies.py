"""What this environment has beside Onceonly: for tests of how others find an installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

OURS = ("onceonly", "_onceonly", "__editable__")  # by which this environment finds the checkout
PACKAGES = Path(pytest.__file__).parents[1]


def link(into: Path) -> None:
    """Link each package into that folder, one by one."""
    for path in PACKAGES.iterdir():
        if not path.name.startswith(OURS) and not (into / path.name).exists():
            (into / path.name).symlink_to(path)
