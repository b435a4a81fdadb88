"""Which line of the user's an error comes from."""

import importlib.util
import sys
from pathlib import Path

import pytest

from onceonly.runtime import spark_errors


class Context:
    """Of a column, as Spark describes it."""

    def __init__(self, site: str | None) -> None:
        self._site = site

    def callSite(self) -> str:
        if self._site is None:
            raise NotImplementedError("SQL text has none")
        return self._site


class AnalysisException(Exception):
    def __init__(self, text: str, *sites: str | None) -> None:
        super().__init__(text)
        self._contexts = [Context(site) for site in sites]

    def getQueryContext(self) -> list[Context]:
        return self._contexts


@pytest.fixture
def module(tmp_path: Path):
    file = tmp_path / "jobs" / "sales.py"
    file.parent.mkdir()
    file.write_text("def clean(batch):\n    return batch['carrier']\n")
    spec = importlib.util.spec_from_file_location("sales_of_a_test", file)
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    yield made
    sys.modules.pop("sales_of_a_test", None)


def test_an_error_while_the_transform_runs(module, tmp_path):
    with pytest.raises(KeyError) as raised:
        module.clean({})
    assert spark_errors.describe_error(raised.value, [tmp_path]) == (
        "KeyError: 'carrier'\nIt comes from jobs/sales.py, line 2."
    )


def test_a_column_that_is_evaluated_late(tmp_path):
    text = "[UNRESOLVED_COLUMN] `carier` cannot be resolved.\n'Project ['carier]\n" + "+- Relation\n" * 1000
    for site, where in (
        (f"{tmp_path}/jobs/sales.py:12", "\nIt comes from jobs/sales.py, line 12."),
        (f"{tmp_path}/.venv/lib/site-packages/delta/tables.py:3", ""),
        (None, ""),
    ):
        told = spark_errors.describe_error(AnalysisException(text, site), [tmp_path])
        assert told == f"AnalysisException: [UNRESOLVED_COLUMN] `carier` cannot be resolved.{where}"


def test_a_project_that_holds_this_package_does_not_own_it():
    ours = Path(spark_errors.__file__)
    wrong = AnalysisException("wrong", f"{ours}:3")
    assert spark_errors.describe_error(wrong, [ours.parents[2]]) == "AnalysisException: wrong"


def test_a_function_that_spark_runs_in_a_worker(tmp_path):
    text = (
        "An exception was thrown from the Python worker. Please see the stack trace below.\n"
        f'Traceback (most recent call last):\n  File "{tmp_path}/jobs/sales.py", line 7, in ratio\n'
        "    return 1 / n\nZeroDivisionError: division by zero\n\nJVM stacktrace:\n at java.lang"
    )
    assert spark_errors.describe_error(RuntimeError(text), [tmp_path]) == (
        "RuntimeError: ZeroDivisionError: division by zero\nIt comes from jobs/sales.py, line 7."
    )


def test_a_package_that_the_settings_name_is_the_users_own(tmp_path):
    package = tmp_path / "lib" / "site-packages" / "team_sales"
    told = spark_errors.describe_error(
        AnalysisException("wrong", f"{package}/clean.py:5"), [tmp_path / "project", package]
    )
    assert told.endswith(f"It comes from {package}/clean.py, line 5.")


def test_an_error_without_text_or_line():
    assert spark_errors.describe_error(ValueError(), [Path("/project")]) == "ValueError: "


def test_an_error_of_a_worker_has_one_name():
    """Now and then PySpark hands it on as the JVM's."""
    worker = (
        'An error occurred\nTraceback (most recent call last):\n  File "x.py", line 3\nZeroDivisionError: by zero\n'
    )
    for name in ("PythonException", "Py4JJavaError"):
        error = type(name, (Exception,), {})(worker)
        assert spark_errors.describe_error(error, [Path("/project")]) == "PythonException: ZeroDivisionError: by zero"
    assert (
        spark_errors.describe_error(type("Py4JJavaError", (Exception,), {})("no route"), [])
        == "Py4JJavaError: no route"
    )
