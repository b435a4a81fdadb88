"""The provider's description, by the entry point `apache_airflow_provider`: for `airflow providers get onceonly`."""

from __future__ import annotations

from importlib.metadata import metadata
from typing import Any

PROVIDER_NAME = "Onceonly"


def get_provider_info() -> dict[str, Any]:
    """Return what Airflow's provider_info.schema.json describes.

    The page is not named here: it has an entry point of its own.
    """
    return {
        "package-name": "onceonly",
        "name": PROVIDER_NAME,
        "description": metadata("onceonly")["Summary"],
        "integrations": [{"integration-name": PROVIDER_NAME, "tags": ["software"]}],
        "operators": [
            {
                "integration-name": PROVIDER_NAME,
                "python-modules": [
                    "onceonly.airflow.operators",
                    "onceonly.airflow.commit",
                    "onceonly.airflow.recovery",
                ],
            }
        ],
        "triggers": [{"integration-name": PROVIDER_NAME, "python-modules": ["onceonly.airflow.triggers"]}],
        "extra-links": ["onceonly.airflow.base.CheckpointLink", "onceonly.airflow.base.DocsLink"],
    }
