"""The plugin, by the entry point `airflow.plugins`: Checkpoints and Verify under Browse, and a tab on each run."""

from __future__ import annotations

from asyncio import to_thread
from importlib import import_module
from typing import Any

from airflow.plugins_manager import AirflowPlugin


async def checkpoints(scope: Any, receive: Any, send: Any) -> None:
    """Serve the app, which the first request imports.

    Every process of Airflow loads plugins, only the api-server serves.
    """
    module = await to_thread(import_module, "onceonly.airflow.ui.app")
    await module.app(scope, receive, send)


class OnceonlyPlugin(AirflowPlugin):
    name = "onceonly"
    fastapi_apps: list[Any] = [{"name": "Onceonly", "app": checkpoints, "url_prefix": "/onceonly"}]  # noqa: RUF012
    # Addresses without a leading slash: below whatever address Airflow is served at.
    external_views: list[Any] = [  # noqa: RUF012
        {"name": "Checkpoints", "category": "browse", "href": "onceonly/", "url_route": "checkpoints"},
        {"name": "Verify", "category": "browse", "href": "onceonly/verifications", "url_route": "verify"},
        {
            "name": "Checkpoints",
            "destination": "dag_run",
            "href": "onceonly/runs?dag_id={DAG_ID}&run_id={RUN_ID}",
            "url_route": "run-checkpoints",
        },
    ]
