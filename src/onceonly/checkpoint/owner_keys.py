"""Owner keys of checkpoints that are runs of an Airflow, as the state table has them."""

from __future__ import annotations


def airflow_owner(dag_id: str, run_id: str, installation: str = "") -> str:
    """Return the owner key of a DAG run.

    Args:
        installation: which of several Airflows runs it (`airflow/runs.py`).
    """
    kind = f"airflow@{installation}" if installation else "airflow"
    return f"{kind}:{dag_id}:{run_id}"


def parse_airflow_run(owner: str) -> tuple[str, str] | None:
    """Return (DAG id, run id) of an owner that is a DAG run, of whichever Airflow; None for any other."""
    kind, _, rest = owner.partition(":")
    dag_id, _, run_id = rest.partition(":")
    if kind.partition("@")[0] != "airflow":
        return None
    return dag_id, run_id


def installation_of(owner: str) -> str:
    """Return the Airflow that runs the owner; empty: it names none."""
    return owner.partition(":")[0].partition("@")[2]
