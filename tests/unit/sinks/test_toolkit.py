"""What packages with sinks rely on: the toolkit, error codes of their own, and connections that are none to brokers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from onceonly import DeltaSink, KafkaSink, KafkaSource, Pipeline, error_codes
from onceonly.cli import main
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.requirements import find_named_table, list_broker_ids, list_connection_ids, list_named_tables
from onceonly.sinks import toolkit

CODES = """
[lines-row-refused]
means = "A row has a line break."
why = "Each row is a line."
do = "Remove it."
quotes_rows = true
"""


@pytest.fixture
def area(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that brings error codes, and one that does not import."""
    (tmp_path / "lines_sink").mkdir()
    (tmp_path / "lines_sink" / "__init__.py").touch()
    file = tmp_path / "lines_sink" / "lines.toml"
    file.write_text(CODES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lines_sink", raising=False)  # of the test before
    offers = [
        EntryPoint(name, module, error_codes.CODES_GROUP) for name, module in [("lines", "lines_sink"), ("no", "nos")]
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: offers)
    error_codes.read_installed.cache_clear()
    yield file
    error_codes.read_installed.cache_clear()


def test_codes_of_a_package_are_explained(area: Path) -> None:
    shown = CliRunner().invoke(main, ["explain", "lines-row-refused"])
    assert (shown.exit_code, shown.output.splitlines()[0]) == (0, "A row has a line break.")
    assert "lines-row-refused" in CliRunner().invoke(main, ["explain", "--json"]).output
    assert error_codes.list_similar_codes("lines-row-refus")[0] == "lines-row-refused"


def test_rows_in_errors_of_a_package_are_not_recorded(area: Path) -> None:
    error = InvalidPipeline("a row is refused.", "It is 'Ada'.", "Fix it.", code="lines-row-refused")
    assert error_codes.without_rows(error).why == error_codes.NOT_RECORDED


def test_broken_codes_hide_no_others(area: Path) -> None:
    area.write_text("[lines")
    assert error_codes.read_installed() == {}
    assert error_codes.find_explanation("target-went-back") is not None


def test_page_has_our_codes_alone(area: Path) -> None:
    assert "lines-row-refused" not in error_codes.format_page()


def test_toolkit_exports_what_it_has() -> None:
    assert all(hasattr(toolkit, name) for name in toolkit.__all__)


def test_configs_of_other_packages_import_quickly() -> None:
    """DAG files import them."""
    program = "import sys, onceonly.sinks; sys.exit('pyarrow' in sys.modules or 'pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_connections_to_brokers_are_those_of_kafka() -> None:
    source, sink = KafkaSource("t", connection="in"), KafkaSink("out", topic="o", format="raw", connection="brokers")
    pipeline = Pipeline(name="p", source=source, transform="m:f", sinks=[sink, DeltaSink("lake", "lake")])
    object.__setattr__(pipeline.sinks[1], "connection", "database")  # as a sink of another package has one
    assert list_broker_ids(pipeline) == {"in", "brokers"}
    assert list_connection_ids(pipeline) == {"in", "brokers", "database"}


def test_tables_of_other_packages_are_in_no_catalog() -> None:
    sinks = [DeltaSink("lake", table="shop.orders"), DeltaSink("other", "other")]
    pipeline = Pipeline(name="p", source=KafkaSource("t"), transform="m:f", sinks=sinks)
    other = SimpleNamespace(name="database", kind="postgres", table="shop.orders")
    object.__setattr__(pipeline, "sinks", [sinks[0], other])
    assert list_named_tables(pipeline) == {"shop.orders"}
    assert (find_named_table(other), find_named_table(sinks[0])) == (None, "shop.orders")
