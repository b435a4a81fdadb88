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
from onceonly.airflow.ui.failed_plans import FailedPlan, list_failed_plans
from onceonly.runtime.owners import parse_airflow_run
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable
from onceonly.views import queries

HEADER = "X-Onceonly-Action"  # no page of another site can make a browser send it along with the login's cookie
Method = Literal["GET", "POST", "PUT"]


class Owners:
    """Which DAGs have run which pipeline. Only rows that are new since the last question are read."""

    def __init__(self) -> None:
        # by state table and pipeline: its last row that was read, and the DAGs up to there
        self._cache: dict[tuple[str, str], tuple[int, frozenset[str]]] = {}

    def dags(self, state_table: StateTable, versions: Mapping[str, int]) -> dict[str, frozenset[str]]:
        """Return by pipeline the ids of its DAGs, at least one.

        Args:
            versions: by pipeline, the sequence number of its last row.
        """
        cached = {name: self._cache.get((state_table.id, name), (0, frozenset[str]())) for name in versions}
        rows_read = {}
        for name, (last_row, _) in cached.items():
            if last_row != versions[name]:
                rows_read[name] = last_row
        for name, owners in state_table.owners(rows_read).items():
            cached[name] = versions[name], cached[name][1] | _dag_ids(owners)
            self._cache[state_table.id, name] = cached[name]
        return {name: dag_ids or frozenset({name}) for name, (_, dag_ids) in cached.items()}


def _dag_ids(owners: Iterable[str]) -> frozenset[str]:
    """Return the DAGs of those owners that are runs of Airflow."""
    dag_ids = set()
    for owner in owners:
        run = parse_airflow_run(owner)
        if run:
            dag_ids.add(run[0])
    return frozenset(dag_ids)


_owners = Owners()


class Viewer:
    """The user of a request, and what of the state table this user may see."""

    def __init__(self, user: GetUserDep) -> None:
        self._user = user
        self.name = user.get_name()
        self._state = queries.find_snapshot(Settings.from_env())
        self._versions = self._state.versions() if self._state else {}
        self._dags = _owners.dags(self._state, self._versions) if self._state else {}

    @property
    def state(self) -> StateTable:
        """Return the state table at the moment of the request; 404 if there is none yet."""
        if self._state is None:
            raise HTTPException(404, "There is no checkpoint yet: nothing has run.")
        return self._state

    def pipelines(self) -> dict[str, int]:
        """Return the pipelines that the user may read, in order, with the sequence number of their last row."""
        readable = {}
        for name, last_row in sorted(self._versions.items()):
            if self.may("GET", name):
                readable[name] = last_row
        return readable

    def may(self, method: Method, pipeline: str) -> bool:
        """Whether the user may read the pipeline ("GET"), act on it ("PUT"), or start its runs ("POST").

        Nobody may where there is none.
        """
        if pipeline not in self._dags:
            return False
        return _is_allowed(self._user, method, self._dags[pipeline], self._teams)

    def dags(self, pipeline: str) -> frozenset[str]:
        """Return the ids of the DAGs to which a pipeline belongs."""
        return self._dags[pipeline]

    def list_failed_plans(self) -> list[FailedPlan]:
        """Return the plans that have never succeeded, of DAGs that have planned nothing and that the user may read."""
        planned = frozenset[str]().union(*self._dags.values())
        plans = list(list_failed_plans(planned))
        teams = versions.teams(sorted({plan.dag_id for plan in plans})) if plans else {}
        return [plan for plan in plans if _is_allowed(self._user, "GET", [plan.dag_id], teams)]

    def version(self, pipeline: str) -> int:
        """Return the sequence number of a pipeline's last row."""
        return self._versions[pipeline]

    @cached_property
    def _teams(self) -> Mapping[str, str | None]:
        """Return the team of each DAG, as Airflow's auth manager may go by it."""
        dag_ids = frozenset[str]().union(*self._dags.values())
        return versions.teams(sorted(dag_ids))


def _is_allowed(user: GetUserDep, method: Method, dags: Iterable[str], teams: Mapping[str, str | None]) -> bool:
    """Whether the user may do that with the runs of every one of these DAGs."""
    requests: list[IsAuthorizedDagRequest] = []
    for dag_id in sorted(dags):
        details = DagDetails(id=dag_id, team_name=teams.get(dag_id))
        requests.append({"method": method, "access_entity": DagAccessEntity.RUN, "details": details})
    return get_auth_manager().batch_is_authorized_dag(requests, user=user)


def make_viewer(user: GetUserDep) -> Viewer:
    """Return the viewer of a request.

    A function, because FastAPI of Airflow 3.1 does not read the annotations of a class in a module like this one.
    """
    return Viewer(user)


ViewerDep = Annotated[Viewer, Depends(make_viewer)]


def require_reader(pipeline: str, viewer: ViewerDep) -> Viewer:
    """Return the viewer for a route of one pipeline; 404 unless the user may read it."""
    if not viewer.may("GET", pipeline):
        raise HTTPException(404, "There is no such pipeline, or you may not see it.")
    return viewer


def require_editor(request: Request, pipeline: str, viewer: Annotated[Viewer, Depends(require_reader)]) -> Viewer:
    """Return the viewer for a route that changes something of one pipeline; 403 unless the user may act on it."""
    if HEADER not in request.headers:
        raise HTTPException(403, f"Actions need the header {HEADER}.")
    if not viewer.may("PUT", pipeline):
        raise HTTPException(403, "You may see this pipeline but not act on it: that needs permission to edit its DAG.")
    return viewer


ReaderDep = Annotated[Viewer, Depends(require_reader)]
EditorDep = Annotated[Viewer, Depends(require_editor)]
