"""Whether writers of a table on an object store exclude each other: otherwise one commit could replace another."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from onceonly.errors import InvalidPipeline
from onceonly.sinks.delta.log import Table
from onceonly.sinks.delta.look import Look
from onceonly.statetable import location
from onceonly.storage import arbitration
from onceonly.storage.paths import local_path

LOCKED = "AWS_S3_LOCKING_PROVIDER"  # then delta-rs excludes others by a lock outside of the store


def by_puts() -> bool:
    """Return whether writers exclude each other by conditional puts: delta-rs may be configured otherwise."""
    puts = os.environ.get("AWS_CONDITIONAL_PUT", "etag").lower()
    return not os.environ.get(LOCKED) and puts in ("etag", "etag-put-if-not-exists")


def require(sink: str, uri: str, table: Table | None) -> None:
    """Refuse a store on which two commits can both win. A table that Onceonly has published to was tried before that.

    Raises:
        InvalidPipeline: nothing was written to the table.
        OSError: the store does not answer.
    """
    scheme = urlsplit(uri).scheme.lower()
    if _was_published_to(table) or local_path(uri) or scheme not in location.ATOMIC_SCHEMES:
        return
    on_s3 = scheme in ("s3", "s3a")
    if on_s3 and os.environ.get(LOCKED):
        return
    if on_s3 and (why := location.find_unsafe_setting()):
        raise InvalidPipeline(
            f"sink '{sink}': publishing to {uri} is not safe.",
            why,
            f"Unset it, or let delta-rs use a lock ({LOCKED}). Nothing was written.",
        )
    arbitration.require_put_if_absent(uri, f"the table of sink '{sink}'")


def _was_published_to(table: Table | None) -> bool:
    return isinstance(table, Look) and any(app_id.startswith("onceonly/") for app_id in table.txns)
