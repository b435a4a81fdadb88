"""Verify a pipeline on live services, and record what was found."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from onceonly.errors import NotCommitted
from onceonly.runtime.live_services import LiveServices
from onceonly.statetable.table import Snapshot
from onceonly.verification.archive import Archive
from onceonly.verification.encoding import to_json
from onceonly.verification.verify import Show, Verifier, show_nothing


def verify_pipeline(
    services: LiveServices,
    pipeline: str,
    is_deep: bool = False,
    since: datetime | None = None,
    show: Show = show_nothing,
) -> tuple[Mapping[str, Any], NotCommitted | None]:
    """Verify a pipeline, and add the result to the table beside the state table.

    Returns:
        The result as JSON, and why it could not be recorded; None: it is.
    """
    uri = services.settings.state
    archive = Archive(uri)
    verifier = Verifier(lambda: Snapshot(uri), services, show)
    data = to_json(verifier.verify(pipeline, is_deep, since, archive.read_earlier(pipeline)))
    try:
        archive.append(data)
    except NotCommitted as error:
        return data, error
    return data, None
