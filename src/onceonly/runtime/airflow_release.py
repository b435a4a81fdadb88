"""The release of Airflow that is installed beside Onceonly, if one is, and what it cannot do.

Nothing here imports Airflow, which takes seconds.
"""

from __future__ import annotations

from importlib import metadata

_LIMITS = (  # before this release; docs/versions.md
    ((3, 2), "a second DAG with this pipeline's name is refused only while the first one has runs"),
    ((3, 3), "a run that is deleted and created again under its id is not planned again"),
)


def list_limits() -> list[str]:
    """Return what the installed Airflow cannot do, for `onceonly check`; nothing where there is no Airflow."""
    try:
        version = metadata.version("apache-airflow-core")
    except metadata.PackageNotFoundError:
        return []
    release = tuple(int(part) for part in version.split(".")[:2])
    return [f"with Airflow {version}, {limit}" for since, limit in _LIMITS if release < since]
