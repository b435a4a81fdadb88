"""Airflow's simple users, and one that may see a single DAG: real auth managers grant rights per DAG, too."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

ONLY = {"olga": "other"}  # user -> the one DAG that is hers


class AuthByDag(SimpleAuthManager):
    def is_authorized_dag(self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None) -> bool:
        if (only := ONLY.get(user.username)) and (details is None or details.id != only):
            return False
        return super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
