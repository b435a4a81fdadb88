"""What DAG files say of a pipeline: read as text, as to run them needs Airflow and takes seconds."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

WITH_SPARK = ("checkpoint_dag", "PlanOperator")  # what takes a pipeline and the connection of its Spark


def list_spark_connections(pipeline: str, folders: Iterable[Path]) -> list[str]:
    """Return the ids of the connections that DAG files in these folders pass as `spark_conn_id` for a pipeline.

    Only those that are written there as text are found.

    Args:
        pipeline: the name of its variable.
    """
    conn_ids: list[str] = []
    for folder in folders:
        for path in sorted(folder.glob("*.py")):
            conn_ids += _read_connections(path, pipeline)
    return sorted(set(conn_ids))


def _read_connections(path: Path, pipeline: str) -> Iterator[str]:
    text = path.read_text(errors="replace")
    if "spark_conn_id" not in text:
        return
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return  # Airflow says so
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last_name(node.func) in WITH_SPARK:
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            conn_id = keywords.get("spark_conn_id")
            subject = node.args[0] if node.args else keywords.get("pipeline")
            if _last_name(subject) == pipeline and isinstance(conn_id, ast.Constant) and isinstance(conn_id.value, str):
                yield conn_id.value


def _last_name(node: ast.expr | None) -> str:
    """Return 'orders' of `orders` and of `pipelines.orders`; empty of anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
