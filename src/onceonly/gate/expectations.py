"""Great Expectations 1.x, called directly."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Number
from typing import Any

from onceonly.counts import count
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.gate import docs
from onceonly.gate.bounds import Check
from onceonly.gate.suites import Suite

RAISED = 300  # characters of an expectation's own failure


@dataclass(frozen=True)
class Subject:
    """The rows of one sink, as a pandas or Spark DataFrame, and their suite."""

    suite: Suite
    rows: Any
    on_spark: bool


def check(suite: Suite) -> None:
    """Raises InvalidPipeline if Great Expectations does not accept the suite; the message names the expectation."""
    _context(_imported())
    _made(suite)


def run(subject: Subject, sink: str) -> tuple[list[Check], str]:
    """The results of the suite for the rows, and their page for the Data Docs."""
    gx = _imported()
    context = _context(gx)
    add = context.data_sources.add_spark if subject.on_spark else context.data_sources.add_pandas
    whole = add("staged").add_dataframe_asset(sink).add_batch_definition_whole_dataframe("whole")
    validation = gx.ValidationDefinition(name=sink, data=whole, suite=context.suites.add(_made(subject.suite)))
    result = validation.run(batch_parameters={"dataframe": subject.rows})
    found = list(_checks(result))
    _check_complete(subject.suite, found)
    return found, docs.page(result)


def _made(suite: Suite) -> Any:
    """Great Expectations' suite, built one by one: from a list, it would log and skip an unknown expectation."""
    gx = _imported()
    from great_expectations.exceptions.exceptions import GreatExpectationsError

    made = gx.ExpectationSuite(name=suite.name)
    for number, each in enumerate(suite.expectations, 1):
        try:
            made.add_expectation(_configuration(each).to_domain_obj())
        except (GreatExpectationsError, TypeError, ValueError) as error:
            raise InvalidPipeline(
                f"gate: {suite.path}: expectation {number} is not valid.",
                f"{each['type']}: {_first_lines(error)}.",
                "Fix it. greatexpectations.io/expectations lists all expectations. Nothing was written.",
            ) from error
    return made


def _configuration(expectation: Mapping[str, Any]) -> Any:
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    given = {key: expectation[key] for key in ("meta", "notes", "description", "severity") if expectation.get(key)}
    return ExpectationConfiguration(type=expectation["type"], kwargs=dict(expectation.get("kwargs", {})), **given)


def _checks(result: Any) -> Iterator[Check]:
    for each in result.results:
        config, seen = each.expectation_config, each.result or {}
        raised = _raised(each.exception_info)
        severity = getattr(config.severity, "value", config.severity)
        yield {
            "what": _what(config),
            "ok": bool(each.success),
            "severity": "critical" if raised else severity,  # an expectation that could not run always counts
            "observed": raised or _observed(seen),
            **({"column": column} if isinstance(column := config.kwargs.get("column"), str) else {}),
        }


def _check_complete(suite: Suite, found: list[Check]) -> None:
    if len(found) != len(suite.expectations):
        raise NotCommitted(
            f"gate: of {count(len(suite.expectations), 'expectation')} in {suite.path}, only {len(found)} had results.",
            "Great Expectations left the others out, so their results are not known.",
            "Check whether two of them are the same. Nothing was published.",
        )


def _what(config: Any) -> str:
    """'expect_column_values_to_be_between(column=delay, min_value=0)'."""
    shown = {key: value for key, value in config.kwargs.items() if key != "batch_id"}
    return f"{config.type}({', '.join(f'{key}={value}' for key, value in shown.items())})"


def _observed(seen: Mapping[str, Any]) -> str:
    """Figures only: values of rows are not copied to where every user can see them."""
    if "unexpected_count" in seen and "element_count" in seen:
        return f"{seen['unexpected_count']:,} of {count(seen['element_count'], 'row')}"
    value = seen.get("observed_value")
    return str(value) if isinstance(value, Number) else "see Data Docs"


def _raised(info: Mapping[str, Any] | None) -> str:
    """Why an expectation could not run. There is one such text, or one per metric."""
    each = [info or {}, *(part for part in (info or {}).values() if isinstance(part, Mapping))]
    messages = [str(one.get("exception_message")) for one in each if one.get("raised_exception")]
    return messages[0][:RAISED] if messages else ""


def _context(gx: Any) -> Any:
    """A context in memory, without a site. Even creating an expectation needs one."""
    from great_expectations.data_context.types.base import DataContextConfig, InMemoryStoreBackendDefaults

    made = DataContextConfig(store_backend_defaults=InMemoryStoreBackendDefaults())
    context = gx.get_context(mode="ephemeral", project_config=made)
    context.variables.progress_bars = {"globally": False}
    return context


def _imported() -> Any:
    """Great Expectations, without usage statistics and, below log level DEBUG, without its lines per registration."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    logger = logging.getLogger("great_expectations")
    if logger.level == logging.NOTSET and logging.getLogger().getEffectiveLevel() > logging.DEBUG:
        logger.setLevel(logging.WARNING)
    import great_expectations as gx

    return gx


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[1:4] if len(lines) > 1 else lines)[:RAISED]  # the first line only counts the errors
