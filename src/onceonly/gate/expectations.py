"""Suites of Great Expectations 1.x: checked and shown by it, and judged by this package.

Its engines do not agree with each other: pandas and Spark compare decimals, dates and NaN differently, and some of its
figures change the rows that others see. Here one judge reads the rows, in this process and on the workers of Spark.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onceonly.errors import InvalidPipeline
from onceonly.gate import docs
from onceonly.gate.arguments import replace_decimals
from onceonly.gate.bounds import Check
from onceonly.gate.columns import by_name, show_literal
from onceonly.gate.reductions import ExpectationResult, NoRows, ReducedRows, conclude
from onceonly.gate.suites import Suite
from onceonly.loggers import quiet

LOG = logging.getLogger(__name__)
MAX_REASON_CHARACTERS = 300  # characters of an expectation's own failure


@dataclass(frozen=True)
class Subject:
    """The rows of one sink and their suite.

    Args:
        rows: None: there are none, and their columns are not known.
    """

    suite: Suite
    rows: ReducedRows | None
    on_spark: bool


def check(suite: Suite) -> None:
    """Refuse a suite that Great Expectations does not accept. The message names the expectation.

    Raises:
        InvalidPipeline: an expectation or an argument is not known.
    """
    _make_context(_import_great_expectations())
    _build_suite(suite)


def run(subject: Subject, sink: str) -> tuple[list[Check], str]:
    """Judge the rows; return the results, and the page of Great Expectations for the Data Docs.

    The page is made last, and no verdict depends on it: if it cannot be made, it says why.
    """
    results = judge(subject)
    checks = []
    for expectation, result in zip(subject.suite.expectations, results, strict=True):
        checks.append(_to_check(expectation, result))
    return checks, _render_page(subject.suite, sink, results)


def judge(subject: Subject) -> list[ExpectationResult]:
    """Return the result of each expectation of the suite, in their order."""
    rows: ReducedRows = NoRows()
    columns = None
    if subject.rows is not None:
        rows, columns = subject.rows, by_name(subject.rows.columns)
    judgements = [start() for start in subject.suite.starts(columns)]
    return conclude(rows, judgements)


def _build_suite(suite: Suite) -> Any:
    """Return Great Expectations' suite, built one by one: from a list, it would log and skip an unknown expectation."""
    gx = _import_great_expectations()
    from great_expectations.exceptions.exceptions import GreatExpectationsError

    gx_suite = gx.ExpectationSuite(name=suite.name)
    for number, expectation in enumerate(suite.expectations, 1):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of a row_condition as text, which is judged here
                gx_suite.add_expectation(_to_configuration(expectation).to_domain_obj())
        except (GreatExpectationsError, TypeError, ValueError) as error:
            raise InvalidPipeline(
                f"gate: {suite.path}: expectation {number} is not valid.",
                f"{expectation['type']}: {_first_lines(error)}.",
                "Fix it. greatexpectations.io/expectations lists all expectations. Nothing was written.",
                code="suite-invalid",
            ) from error
    return gx_suite


def _to_configuration(expectation: Mapping[str, Any]) -> Any:
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    options = {}
    for key in ("meta", "notes", "description", "severity"):
        if expectation.get(key):
            options[key] = expectation[key]
    kwargs = replace_decimals(expectation.get("kwargs", {}))
    return ExpectationConfiguration(type=expectation["type"], kwargs=kwargs, **options)


def _to_check(expectation: Mapping[str, Any], result: ExpectationResult) -> Check:
    kwargs = expectation.get("kwargs", {})
    check: Check = {
        "what": _describe(expectation["type"], kwargs),
        "ok": result.ok,
        "severity": expectation.get("severity") or "critical",
        "observed": result.observed,
    }
    if isinstance(kwargs.get("column"), str):
        check["column"] = kwargs["column"]
    return check


def _describe(kind: str, kwargs: Mapping[str, Any]) -> str:
    """Return 'expect_column_values_to_be_between(column=delay, min_value=0)'."""
    arguments = []
    for key, value in kwargs.items():
        if isinstance(value, str):
            arguments.append(f"{key}={value}")
        else:
            arguments.append(f"{key}={show_literal(value)}")
    return f"{kind}({', '.join(arguments)})"


def _render_page(suite: Suite, sink: str, results: list[ExpectationResult]) -> str:
    """Return the page of Great Expectations; or, whatever goes wrong with it, one that says why there is none."""
    try:
        _make_context(_import_great_expectations())
        return docs.render_page(_to_validation_result(suite, sink, results))
    except Exception as error:  # of another product, after the verdict: nothing may take that with it
        LOG.warning("gate: Great Expectations could not make the page of sink '%s': %r", sink, error)
        return docs.render_missing_page(f"{type(error).__name__}: {str(error)[:MAX_REASON_CHARACTERS]}")


def _to_validation_result(suite: Suite, sink: str, results: list[ExpectationResult]) -> Any:
    from great_expectations.core.expectation_validation_result import (
        ExpectationSuiteValidationResult,
        ExpectationValidationResult,
    )

    gx_results = []
    successful = 0
    for expectation, result in zip(suite.expectations, results, strict=True):
        gx_results.append(
            ExpectationValidationResult(
                success=result.ok,
                expectation_config=_to_configuration(expectation),
                result=result.details,
                exception_info={"raised_exception": False, "exception_message": None, "exception_traceback": None},
            )
        )
        if result.ok:
            successful += 1
    return ExpectationSuiteValidationResult(
        success=successful == len(results),
        results=gx_results,
        suite_name=suite.name,
        statistics={
            "evaluated_expectations": len(results),
            "successful_expectations": successful,
            "unsuccessful_expectations": len(results) - successful,
            "success_percent": 100.0 * successful / len(results),
        },
        meta={"active_batch_definition": {"data_asset_name": sink, "datasource_name": "staged"}},
    )


def _make_context(gx: Any) -> Any:
    """Return a context in memory, without a site. Even creating an expectation needs one."""
    from great_expectations.data_context.types.base import DataContextConfig, InMemoryStoreBackendDefaults

    config = DataContextConfig(store_backend_defaults=InMemoryStoreBackendDefaults())
    context = gx.get_context(mode="ephemeral", project_config=config)
    context.variables.progress_bars = {"globally": False}
    return context


def _import_great_expectations() -> Any:
    """Import Great Expectations, without usage statistics, and without a line in the log for each registration."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    quiet("great_expectations", logging.WARNING)
    import great_expectations as gx

    return gx


def _first_lines(error: Exception) -> str:
    lines = []
    for line in str(error).splitlines():
        text = line.strip()
        if text:
            lines.append(text)
    if len(lines) > 1:
        lines = lines[1:4]  # the first line only counts the errors
    return "; ".join(lines)[:MAX_REASON_CHARACTERS]
