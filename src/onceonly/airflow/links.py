"""Links from a task to what it worked on: the checkpoint's page (the plugin serves it), and what its gate found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

from onceonly.airflow.versions import conf

if TYPE_CHECKING:
    from onceonly.checkpoint.model import Checkpoint


def checkpoint_page(pipeline: str, epoch: int | None = None) -> str:
    """Return the address of a checkpoint's page, or of its pipeline's."""
    base_url = conf.get("api", "base_url", fallback="/").rstrip("/")
    page = f"{base_url}/onceonly/pipelines/{pipeline}"
    return f"{page}/{epoch}" if epoch else page


def docs_page(checkpoint: Checkpoint) -> str:
    """Return the address of the page that serves its Data Docs; empty if there are none.

    Docs that have a web address of their own are served there.
    """
    stored = str((checkpoint.verdict and checkpoint.verdict["docs"]) or "")
    if not stored or stored.startswith(("https://", "http://")):
        return stored
    return f"{checkpoint_page(checkpoint.pipeline, checkpoint.epoch)}/docs/{checkpoint.attempt}/index.html"


class CheckpointLink(BaseOperatorLink):
    """The checkpoint's page, shown on the task once it has ended; without a checkpoint, the pipeline's."""

    name = "Checkpoint"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return checkpoint_page(getattr(operator.pipeline, "name", operator.pipeline), operator.linked_epoch)


class DocsLink(BaseOperatorLink):
    """The page of the Data Docs: what Great Expectations found in the rows that a gate has examined."""

    name = "Data Docs"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        docs: str = operator.docs
        return docs
