"""The receipt of what was staged: it names the transaction's list of files by a digest, and what it was made for.

(No `from __future__ import annotations` here: `TypedDict` has to see the types.)
"""

from typing import Annotated, Literal, TypedDict

from onceonly.sinks.toolkit import Count, Like

PART = "[0-9A-Za-z_]+"


class IcebergHandle(TypedDict):
    """As the state table holds it. It has no location: files are looked for below the table that the sink names."""

    kind: Literal["iceberg"]
    target: str  # for people
    table_uuid: str
    branch: str
    txn: Annotated[str, Like(f"{PART}(-{PART}){{2}}-[0-9]+-[0-9]+-{PART}")]
    app_id: Annotated[str, Like(f"onceonly/{PART}/{PART}/{PART}")]
    digest: Annotated[str, Like("[0-9a-f]{64}")]  # SHA-256 of the list of files
    schema_id: Count
    spec_id: Count
    files: Count
    rows: Count
    bytes: Count
