"""From a task to what it worked on: the checkpoint's page (plugins/ serves it), and what its gate found."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf


class CheckpointLink(BaseOperatorLink):
    """Shown on the task once it has ended; of a task that found no checkpoint, the pipeline's page."""

    name = "Checkpoint"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        name = getattr(operator.pipeline, "name", operator.pipeline)
        page = f"{conf.get('api', 'base_url', fallback='/').rstrip('/')}/onceonly/pipelines/{name}"
        return f"{page}/{operator.worked_on}" if operator.worked_on else page


class DocsLink(BaseOperatorLink):
    """Great Expectations' page on the rows that a gate has examined; a place on a disk is opened there."""

    name = "Data Docs"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        docs: str = operator.docs
        return docs
