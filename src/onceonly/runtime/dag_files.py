"""What DAG files say of a pipeline: read as text, as to run them needs Airflow and takes seconds."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

# What takes the connection of a Spark, and of which pipeline: the variable, its name, or all of them.
BY_VARIABLE = ("checkpoint_dag", "PlanOperator")
BY_NAME = ("StageOperator", "GateOperator", "CommitOperator")
OF_ALL = ("recovery_dag", "RecoverOperator")
SPARK_ARGUMENT, NOTIFIER, NOTIFIER_ARGUMENT = "spark_conn_id", "WebhookNotifier", "conn_id"


@dataclass(frozen=True)
class NamedConnections:
    """The connections that DAG files name for the tasks of a pipeline.

    Args:
        of_spark: connection id -> where it is named, as "orders.py:12".
        of_notifiers: likewise, those of notifiers.
        unknown: where one is named by what is no text.
    """

    of_spark: Mapping[str, str] = field(default_factory=dict)
    of_notifiers: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()

    @property
    def all(self) -> Mapping[str, str]:
        return {**self.of_spark, **self.of_notifiers}


def find_connections(variable: str, name: str, folders: Iterable[Path]) -> NamedConnections:
    """Return the connections that DAG files in these folders name for the tasks of a pipeline, and of its recovery.

    Args:
        variable: that of the pipeline.
        name: its own.
    """
    of_spark: dict[str, str] = {}
    of_notifiers: dict[str, str] = {}
    unknown: list[str] = []
    for folder in folders:
        for path in sorted(folder.glob("*.py")):
            for line, parameter, argument in _list_arguments(path, variable, name):
                place = f"{path.name}:{line}"
                if not _is_plain_text(argument):
                    unknown.append(place)
                elif parameter == NOTIFIER_ARGUMENT:
                    of_notifiers.setdefault(ast.literal_eval(argument), place)
                else:
                    of_spark.setdefault(ast.literal_eval(argument), place)
    return NamedConnections(of_spark, of_notifiers, tuple(dict.fromkeys(unknown)))


def _list_arguments(path: Path, variable: str, name: str) -> Iterator[tuple[int, str, ast.expr]]:
    """Yield line, parameter and argument of each connection that a file names for a pipeline, or for all of them."""
    text = path.read_text(errors="replace")
    if SPARK_ARGUMENT not in text and NOTIFIER not in text:
        return
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return  # Airflow says so
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function, keywords = _last_name(node.func), {keyword.arg: keyword.value for keyword in node.keywords}
        if SPARK_ARGUMENT in keywords and _is_of_pipeline(function, node, variable, name):
            yield node.lineno, SPARK_ARGUMENT, keywords[SPARK_ARGUMENT]
        if function == NOTIFIER and (node.args or NOTIFIER_ARGUMENT in keywords):
            yield node.lineno, NOTIFIER_ARGUMENT, keywords.get(NOTIFIER_ARGUMENT) or node.args[0]


def _is_of_pipeline(function: str, call: ast.Call, variable: str, name: str) -> bool:
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if function in BY_VARIABLE:
        return _last_name(call.args[0] if call.args else keywords.get("pipeline")) == variable
    if function in BY_NAME:
        pipeline = keywords.get("pipeline")
        is_other = isinstance(pipeline, ast.Constant) and pipeline.value != name
        return not is_other and (not isinstance(pipeline, ast.Attribute) or _last_name(pipeline.value) == variable)
    return function in OF_ALL


def _is_plain_text(node: ast.expr) -> bool:
    """Return whether it is a text that is no template."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and "{{" not in node.value


def _last_name(node: ast.expr | None) -> str:
    """Return 'orders' of `orders` and of `pipelines.orders`; empty of anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
