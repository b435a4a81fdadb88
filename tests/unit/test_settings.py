"""Every setting that the sources read is documented, in one table, and shown by `onceonly --help`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from onceonly.cli import main
from onceonly.settings import VARIABLES, Settings

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "onceonly").rglob("*.py"))
INTERNAL = {"ONCEONLY_SERVICE_TOKEN"}  # by which a service is found again; nobody sets it
NAMES = {variable.name for variable in VARIABLES}


def test_what_the_sources_read_is_listed_and_what_is_listed_is_read() -> None:
    """A name in quotes, or `$NAME`, is one that the sources use."""
    elsewhere = [file.read_text("utf-8") for file in SOURCES if file.name != "settings.py"]
    settings = (ROOT / "src" / "onceonly" / "settings.py").read_text("utf-8")
    code = settings.replace(settings[settings.index("VARIABLES = (") : settings.index("\n)\n")], "")
    mentioned = {name for text in [*elsewhere, settings] for name in re.findall(r"\bONCEONLY_[A-Z_]*[A-Z]\b", text)}
    assert mentioned - INTERNAL <= NAMES
    used = "\n".join([*elsewhere, code])
    assert [name for name in NAMES if f'"{name}"' not in used] == []


@pytest.mark.parametrize("each", VARIABLES, ids=lambda each: each.name)
def test_each_is_in_the_help_and_in_the_table(each: object) -> None:
    shown = CliRunner().invoke(main, ["help", "settings"]).stdout
    for text in vars(each).values():
        assert text in shown
    assert "| `{name}` | {meaning} | {default} |\n".format(**vars(each)) in (ROOT / "docs" / "settings.md").read_text()


def test_another_machine_is_given_all_that_counts_there() -> None:
    """All but credentials, how commands find Spark, and what is of services on one machine."""
    values = {name: f"/{name.lower()}" for name in NAMES} | {"ONCEONLY_KAFKA_WRITER": "python"}
    given = Settings.from_env(values).environment()
    local = {
        "ONCEONLY_AWS_CONNECTION",
        "ONCEONLY_AZURE_CONNECTION",
        "ONCEONLY_GOOGLE_CONNECTION",
        "ONCEONLY_CODE_VERSION",  # the code there is another copy
        "ONCEONLY_KAFKA_PORT",
        "ONCEONLY_SPARK_PORT",
        "ONCEONLY_SPARK_MEMORY",
        "ONCEONLY_AIRFLOW_PORT",
        "SPARK_REMOTE",
    }
    assert set(given) == NAMES - local
