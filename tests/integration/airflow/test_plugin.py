"""What a real Airflow finds of an installed Onceonly: its page once, however it came there, and its description."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from integration import dependencies
from integration.programs.children import without_spark
from patience import PATIENCE

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]
LOOK = """
import json
from airflow import plugins_manager
from airflow.providers_manager import ProvidersManager
plugins, errors = plugins_manager._get_plugins()
apps, _ = plugins_manager.get_fastapi_plugins()
views, _ = plugins_manager._get_ui_plugins()
manager = ProvidersManager()
print("FOUND " + json.dumps({
    "sources": [type(each.source).__name__ for each in plugins if each.name == "onceonly"],
    "errors": errors,
    "apps": [app["url_prefix"] for app in apps if app["name"] == "Onceonly"],
    "views": [view["url_route"] for view in views if view["name"] == "Checkpoints"],
    "provider": manager.providers["onceonly"].data if "onceonly" in manager.providers else None,
    "links": [each for each in manager.extra_links_class_names if "onceonly" in each],
    "triggers": [each.trigger_class_name for each in manager.trigger if "onceonly" in each.package_name],
    "others": sorted({"onceonly.airflow.operators", "pyspark", "deltalake"} & set(__import__("sys").modules)),
}))
"""


def look(tmp_path: Path, installed: bool, folder: Path) -> dict[str, Any]:
    """In an Airflow with that plugins folder, and Onceonly installed with its entry points, or only on its path.

    Without `site`, this environment's own installation of Onceonly is not found.
    """
    distribution = tmp_path / "path" / "onceonly-0.1.0.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: onceonly\nVersion: 0.1.0\nSummary: tried\n")
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"] if installed else {}
    lines = [f"[{group}]\n" + "".join(f"{name} = {at}\n" for name, at in of.items()) for group, of in groups.items()]
    (distribution / "entry_points.txt").write_text("\n".join(lines))
    dependencies.link(tmp_path / "path")
    env = {
        **without_spark(os.environ),
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "path"), str(ROOT / "src")]),
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(folder),
    }
    child = subprocess.run(
        [sys.executable, "-S", "-c", LOOK], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    told = [line for line in child.stdout.splitlines() if line.startswith("FOUND ")]
    assert told, child.stdout + child.stderr
    found: dict[str, Any] = json.loads(told[-1].removeprefix("FOUND "))
    return found


@pytest.mark.parametrize(
    ("installed", "copied", "source"),
    [(True, False, "EntryPointSource"), (True, True, "EntryPointSource"), (False, True, "PluginsDirectorySource")],
    ids=["installed", "installed and copied", "copied"],
)
def test_the_page_is_registered_once(tmp_path: Path, installed: bool, copied: bool, source: str) -> None:
    found = look(tmp_path, installed, ROOT / "plugins" if copied else tmp_path / "none")
    assert (found["sources"], found["errors"]) == ([source], {})
    assert (found["apps"], found["views"]) == (["/onceonly"], ["checkpoints", "run-checkpoints"])


def test_airflow_knows_it_as_a_provider(tmp_path: Path) -> None:
    """It has validated the description by its schema; loading plugin and description imports no operator."""
    found = look(tmp_path, True, tmp_path / "none")
    assert (found["provider"]["name"], found["provider"]["description"]) == ("Onceonly", "tried")
    assert found["links"] == ["onceonly.airflow.base.CheckpointLink", "onceonly.airflow.base.DocsLink"]
    assert found["triggers"] == ["onceonly.airflow.triggers"]
    assert found["others"] == []
