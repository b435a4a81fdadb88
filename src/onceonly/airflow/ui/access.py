"""Who may see and do what: a pipeline belongs to every DAG that has ever run it.

Users see a pipeline if they may read the runs of all of these DAGs, and act on it if they may edit them. A pipeline
that no DAG has run counts as the DAG of its own name, which is how `checkpoint_dag` would call it: so users who may
read every DAG see it, and nobody else. Users are not told that what they may not see exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.batch_apis import IsAuthorizedDagRequest
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import Depends, HTTPException, Request

from onceonly.airflow import versions
from onceonly.runtime.owners import parse_airflow_run
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable
from onceonly.views import queries

HEADER = "X-Onceonly-Action"  # no page of another site can make a browser send it along with the login's cookie
Method = Literal["GET", "PUT"]


class Owners:
    """Which DAGs have run which pipeline. Only rows that are new since the last question are read."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[int, frozenset[str]]] = {}

    def dags(self, state: StateTable, versions: Mapping[str, int]) -> dict[str, frozenset[str]]:
        """By pipeline, never empty. `versions`: each one's last row."""
        known = {name: self._known.get((state.id, name), (0, frozenset[str]())) for name in versions}
        new = state.owners({name: read for name, (read, _) in known.items() if read != versions[name]})
        for name, owners in new.items():
            runs = (parse_airflow_run(owner) for owner in owners)
            known[name] = versions[name], known[name][1] | {run[0] for run in runs if run}
            self._known[state.id, name] = known[name]
        return {name: found or frozenset({name}) for name, (_, found) in known.items()}


_owners = Owners()


class Viewer:
    """The user of a request, and what of the state table this user may see."""

    def __init__(self, user: GetUserDep) -> None:
        self._user = user
        self.name = user.get_name()
        self._state = queries.snapshot(Settings.from_env())
        self._versions = self._state.versions() if self._state else {}
        self._dags = _owners.dags(self._state, self._versions) if self._state else {}

    @property
    def state(self) -> StateTable:
        if self._state is None:
            raise HTTPException(404, "There is no checkpoint yet: nothing has run.")
        return self._state

    def pipelines(self) -> dict[str, int]:
        """Those that the user may read, by name, with the sequence number of their last row."""
        return {name: seq for name, seq in sorted(self._versions.items()) if self.may("GET", name)}

    def may(self, method: Method, pipeline: str) -> bool:
        """Read ("GET"), or act ("PUT")."""
        return pipeline in self._dags and _allows(self._user, method, self._dags[pipeline], self._teams)

    def dags(self, pipeline: str) -> frozenset[str]:
        return self._dags[pipeline]

    def version(self, pipeline: str) -> int:
        """The sequence number of its last row."""
        return self._versions[pipeline]

    @cached_property
    def _teams(self) -> Mapping[str, str | None]:
        return versions.teams(sorted(frozenset[str]().union(*self._dags.values())))


def _allows(user: GetUserDep, method: Method, dags: Iterable[str], teams: Mapping[str, str | None]) -> bool:
    details = [DagDetails(id=dag_id, team_name=teams.get(dag_id)) for dag_id in sorted(dags)]
    asked: list[IsAuthorizedDagRequest] = [
        {"method": method, "access_entity": DagAccessEntity.RUN, "details": each} for each in details
    ]
    return get_auth_manager().batch_is_authorized_dag(asked, user=user)


def viewer_of(user: GetUserDep) -> Viewer:
    """A function, because FastAPI of Airflow 3.1 does not read the annotations of a class in a module like this one."""
    return Viewer(user)


ViewerDep = Annotated[Viewer, Depends(viewer_of)]


def readable(pipeline: str, viewer: ViewerDep) -> Viewer:
    """For a route of one pipeline."""
    if not viewer.may("GET", pipeline):
        raise HTTPException(404, "There is no such pipeline, or you may not see it.")
    return viewer


def editable(request: Request, pipeline: str, viewer: Annotated[Viewer, Depends(readable)]) -> Viewer:
    """For a route that changes something of one pipeline."""
    if HEADER not in request.headers:
        raise HTTPException(403, f"Actions need the header {HEADER}.")
    if not viewer.may("PUT", pipeline):
        raise HTTPException(403, "You may see this pipeline but not act on it: that needs permission to edit its DAG.")
    return viewer


ReaderDep = Annotated[Viewer, Depends(readable)]
EditorDep = Annotated[Viewer, Depends(editable)]
