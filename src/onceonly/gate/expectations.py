"""Great Expectations 1.x, called directly: one run over all suites of a checkpoint, and its Data Docs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceonly.errors import InvalidPipeline
from onceonly.gate.bounds import Check
from onceonly.gate.suites import Suite

RAISED = 300  # characters of an expectation's own failure
SITE = "gate"


@dataclass(frozen=True)
class Subject:
    """The rows of one sink: a pandas DataFrame, or one of Spark."""

    suite: Suite
    rows: Any
    on_spark: bool


def check(suite: Suite) -> None:
    """Raises InvalidPipeline when Great Expectations cannot make its suite of it; a message names the expectation."""
    _made(suite)


def run(subjects: Mapping[str, Subject], title: str, docs: Path) -> dict[str, list[Check]]:
    """The checks of each sink, by name.

    Args:
        title: of the run in the Data Docs, such as 'flights epoch 7 attempt 1'.
        docs: folder that the Data Docs are built into.
    """
    gx = _imported()
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    context.add_data_docs_site(site_name=SITE, site_config=_site(docs))
    found = {}
    for sink, subject in subjects.items():
        definition = _definition(gx, context, sink, subject)
        checkpoint = gx.Checkpoint(name=sink, validation_definitions=[definition], actions=[])
        result = context.checkpoints.add(checkpoint).run(
            batch_parameters={"dataframe": subject.rows}, run_id=gx.RunIdentifier(run_name=title)
        )
        found[sink] = [each for one in result.run_results.values() for each in _checks(one)]
    context.build_data_docs(site_names=[SITE])
    return found


def _definition(gx: Any, context: Any, sink: str, subject: Subject) -> Any:
    add = context.data_sources.add_spark if subject.on_spark else context.data_sources.add_pandas
    asset = add(f"staged_{sink}").add_dataframe_asset(sink)
    suite = context.suites.add(_made(subject.suite))
    whole = asset.add_batch_definition_whole_dataframe("whole")
    return context.validation_definitions.add(gx.ValidationDefinition(name=sink, data=whole, suite=suite))


def _made(suite: Suite) -> Any:
    gx = _imported()
    made = gx.ExpectationSuite(name=suite.name)
    for number, each in enumerate(suite.expectations, 1):
        try:
            made.add_expectation_configuration(
                gx.expectations.ExpectationConfiguration(
                    type=each["type"],
                    kwargs=dict(each.get("kwargs", {})),
                    meta=dict(each.get("meta") or {}),
                    severity=each.get("severity", "critical"),
                )
            )
        except Exception as error:
            raise InvalidPipeline(
                f"gate: {suite.path}: expectation {number} cannot be asked.",
                f"{each['type']}: {_first_line(error)}",
                "Mend it; Great Expectations lists them at greatexpectations.io/expectations. Nothing was written.",
            ) from error
    return made


def _checks(result: Any) -> Iterator[Check]:
    for each in result.results:
        config, seen = each.expectation_config, each.result or {}
        raised = _raised(each.exception_info)
        severity = getattr(config.severity, "value", config.severity)
        yield {
            "what": _what(config),
            "ok": bool(each.success),
            "severity": "critical" if raised else severity,  # what could not be asked is no matter of taste
            "observed": raised or _observed(seen),
        }


def _what(config: Any) -> str:
    """'expect_column_values_to_be_between(column=delay, min_value=0)'."""
    shown = {key: value for key, value in config.kwargs.items() if key != "batch_id"}
    return f"{config.type}({', '.join(f'{key}={value}' for key, value in shown.items())})"


def _observed(seen: Mapping[str, Any]) -> str:
    """Figures alone: rows are not copied to where everybody looks."""
    if "unexpected_count" in seen:
        return f"{seen['unexpected_count']:,} of {seen['element_count']:,} rows"
    value = seen.get("observed_value")
    return str(value) if isinstance(value, (int, float)) else "see Data Docs"


def _raised(info: Mapping[str, Any] | None) -> str:
    """Why an expectation could not be asked; one for each metric, or one in all."""
    each = [info or {}, *(part for part in (info or {}).values() if isinstance(part, Mapping))]
    said = [str(one.get("exception_message")) for one in each if one.get("raised_exception")]
    return said[0][:RAISED] if said else ""


def _site(docs: Path) -> dict[str, Any]:
    return {
        "class_name": "SiteBuilder",
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(docs)},
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
    }


def _imported() -> Any:
    """Great Expectations, which reports to nobody."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations as gx

    return gx


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:3])[:RAISED]
