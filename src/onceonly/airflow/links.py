"""From a task to what it worked on: the checkpoint's page (the plugin serves it), and what its gate found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

from onceonly.airflow.versions import conf

if TYPE_CHECKING:
    from onceonly.checkpoint.model import Checkpoint


def page_of(pipeline: str, epoch: int | None = None) -> str:
    """The address of a checkpoint's page, or of its pipeline's."""
    page = f"{conf.get('api', 'base_url', fallback='/').rstrip('/')}/onceonly/pipelines/{pipeline}"
    return f"{page}/{epoch}" if epoch else page


def docs_page(checkpoint: Checkpoint) -> str:
    """The address of the page that serves its Data Docs; empty if there are none."""
    stored = str((checkpoint.verdict and checkpoint.verdict["docs"]) or "")
    if not stored or stored.startswith(("https://", "http://")):
        return stored
    return f"{page_of(checkpoint.pipeline, checkpoint.epoch)}/docs/{checkpoint.attempt}/index.html"


class CheckpointLink(BaseOperatorLink):
    """Shown on the task once it has ended; of a task that found no checkpoint, the pipeline's page."""

    name = "Checkpoint"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return page_of(getattr(operator.pipeline, "name", operator.pipeline), operator.worked_on)


class DocsLink(BaseOperatorLink):
    """What Great Expectations found in the rows that a gate has examined: the page serves its Data Docs."""

    name = "Data Docs"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        docs: str = operator.docs
        return docs
