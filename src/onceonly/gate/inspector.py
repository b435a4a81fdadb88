"""Runs a gate's checks on staged rows: bounds from recorded figures, suites in process or on Spark."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from onceonly.checkpoint.interfaces import Findings, Inspector
from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.sink import Sink, require_inspectable
from onceonly.counts import count
from onceonly.gate import bounds, docs, expectations, suites
from onceonly.gate.columns import Column, by_name, columns_of_spark
from onceonly.gate.expectations import Subject
from onceonly.gate.reductions import LocalRows, SparkRows
from onceonly.gate.suites import Suite
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.gate import Gate
from onceonly.spark.row_files import require_rows
from onceonly.waits import wait_for

LOG = logging.getLogger(__name__)


class LiveInspector(Inspector):
    """Judges rows in this process or on Spark, by the same code.

    Args:
        sink: finds a sink's writer by name.
        project: the folder that suites are relative to.
        docs: path or URI below which each examination writes a folder of Data Docs.
        spark: returns a session, started if necessary; called only for many rows.
    """

    def __init__(
        self, pipeline: Pipeline, sink: Callable[[str], Sink], project: Path, docs: str, spark: Callable[[], Any]
    ) -> None:
        assert pipeline.gate
        self._pipeline, self._gate, self._sink = pipeline, pipeline.gate, sink
        self._project, self._docs, self._spark = project, docs, spark

    def check(self) -> list[str]:
        notes = []
        if self._gate.suites:
            suites.check_installed()
        for sink, suite in self._suites().items():
            columns = require_inspectable(self._sink(sink)).columns()
            if columns is not None:
                suite.check_columns(sink, columns)
            suite.starts(self._types(sink))
            note = f"gate: {suite.path} has {count(len(suite.expectations), 'expectation')} for sink '{sink}'"
            if columns is None:
                note += ", whose columns are known once its first rows are staged"
            notes.append(note)
        return notes

    def check_outputs(self, outputs: Mapping[str, Any]) -> None:
        """Check the suites' columns against the transform's outputs, unless the sink knows its columns itself.

        The fields of JSON for Kafka are columns of the gate, and no columns of the transform.
        """
        for sink, suite in self._suites().items():
            columns, types = require_inspectable(self._sink(sink)).columns(), self._types(sink)
            if columns is None and require_inspectable(self._sink(sink)).stages_columns_as_returned:
                columns = list(outputs[sink].columns)
                types = by_name(columns_of_spark(json.loads(outputs[sink].schema.json())))
            if columns is not None:
                suite.check_columns(sink, columns)
            suite.starts(types)

    def _types(self, sink: str) -> dict[str, Column] | None:
        """Return the columns of a sink with their types, if both are known before rows are staged."""
        types = require_inspectable(self._sink(sink)).types()
        if not types:
            return None
        return by_name(columns_of_spark(types))

    def check_suites(self) -> None:
        """Check the suites with Great Expectations itself."""
        for suite in self._suites().values():
            with wait_for(f"Great Expectations, which checks {suite.path}"):
                expectations.check(suite)

    def examine(self, checkpoint: Checkpoint) -> Findings:
        sinks: dict[str, Any] = {}
        for sink in _sinks_with_checks(self._gate):
            if sink in checkpoint.sinks:  # a repair leaves the rows of others as they are
                sinks[sink] = self._check_bounds(checkpoint, sink)
        pages = {}
        for sink, suite in self._suites().items():  # one after the other: the rows of one at a time are in memory
            if sink not in sinks:
                continue
            with wait_for(f"the checks of {suite.path} on the rows of sink '{sink}'"):
                subject = self._subject(checkpoint, sink, suite)
                checks, pages[sink] = expectations.run(subject, sink)
            sinks[sink]["path"] = "spark" if subject.on_spark else "in process"
            sinks[sink]["checks"] += checks
        if not pages:
            return Findings(sinks)
        return Findings(sinks, self._write_docs(checkpoint, sinks, pages))

    def forget(self, examined: Findings) -> None:
        if examined.docs:
            docs.delete_pages(examined.docs)

    def _suites(self) -> dict[str, Suite]:
        """Return the suites by sink."""
        paths: Any = self._gate.suites
        return {sink: suites.load(path, self._project) for sink, path in paths.items()}

    def _subject(self, checkpoint: Checkpoint, name: str, suite: Suite) -> Subject:
        """Read the staged rows: in this process if they are few, and on Spark if they are many or only it can."""
        handle, sink = checkpoint.handles[name], require_inspectable(self._sink(name))
        rows, limit = handle["rows"], self._gate.in_process_rows
        staged = sink.read_staged(handle) if rows <= limit else None
        if staged is None and not rows:
            return Subject(suite, None, False)
        path = "on Spark" if staged is None else "in process"
        LOG.info("gate: %s rows of sink '%s' %s (in_process_rows=%s)", f"{rows:,}", name, path, f"{limit:,}")
        if staged is not None:
            table = staged.read_all()
            require_rows(table.num_rows, rows, f"sink '{name}': the staged rows")
            return Subject(suite, LocalRows(table), False)
        frame = sink.staged_frame(handle, self._spark())
        require_rows(frame.count(), rows, f"sink '{name}': the staged rows")
        return Subject(suite, SparkRows(frame), True)

    def _check_bounds(self, checkpoint: Checkpoint, sink: str) -> dict[str, Any]:
        checks = bounds.check(self._gate, checkpoint, self._sink(sink))
        return {"rows": checkpoint.handles[sink]["rows"], "path": "in process", "checks": checks}

    def _write_docs(self, checkpoint: Checkpoint, sinks: Mapping[str, Any], pages: Mapping[str, str]) -> str | None:
        """Write the Data Docs; return the address of their index.

        None: they could not be written, which each sink with a page then says. The verdict does not depend on them.
        """
        checks = {sink: examined["checks"] for sink, examined in sinks.items()}
        folder = f"{checkpoint.epoch}-{checkpoint.attempt}-{uuid.uuid4().hex[:12]}"
        title = f"{checkpoint.pipeline} epoch {checkpoint.epoch} attempt {checkpoint.attempt}"
        try:
            return docs.write_pages(f"{self._docs}/{checkpoint.pipeline}/{folder}", title, checks, pages)
        except Exception as error:
            why = f"{type(error).__name__}: {str(error)[:300]}"
            LOG.warning("gate: the Data Docs could not be written below %s: %s", self._docs, why)
            for sink in pages:
                note = {"what": "Data Docs can be written", "ok": False, "severity": "info", "observed": why}
                sinks[sink]["checks"].append(note)
            return None


def _sinks_with_checks(gate: Gate) -> list[str]:
    """Return the sinks that the gate has checks for."""
    options: list[Any] = [gate.suites, gate.min_rows, gate.max_rows, gate.fresh]
    return sorted(set[str]().union(*options))
