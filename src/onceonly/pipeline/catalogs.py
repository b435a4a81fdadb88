"""Tables that a catalog knows by name. A plan looks each name up, and its checkpoint is about the table found then.

Where the catalog also decides which commits count, the folder of a table alone is no evidence of what was published: a
commit may be in `_delta_log/_staged_commits`, or known to the catalog only. Source: Delta protocol, "Catalog-managed
tables".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.checks import option_error

TABLE_NAME = re.compile(r"[\w-]+(\.[\w-]+){1,2}")
UNSTORED_DEFAULTS: Mapping[str, Any] = {
    "table": None,
    "table_id": None,
}  # fields that are stored only if they differ from these

MANAGING_FEATURES = {"catalogManaged", "catalogManaged-preview", "catalogOwned-preview", "coordinatedCommits-preview"}


@dataclass(frozen=True)
class CatalogTable:
    """A table that a catalog has found by its name: its path or URI, and its id in Delta."""

    path: str
    table_id: str


def check_table_name(what: str, path: str, table: str | None, table_id: str | None) -> None:
    """Refuse anything but a path, a name, or a name with what was found by it. Raises InvalidPipeline."""
    if table is None:
        if table_id is not None:
            raise option_error(
                what, "has a table_id, and no table", "Set table='catalog.schema.table' alone.", code="options-conflict"
            )
        return
    if not isinstance(table, str) or not TABLE_NAME.fullmatch(table):
        raise option_error(
            what,
            f"has the table {table!r}, which is no name in a catalog",
            "Write 'schema.table' or with its catalog.",
            code="option-invalid",
        )
    if bool(path) != bool(table_id):
        raise option_error(
            what,
            "has a path and a table",
            "Set one of the two: a table's path is looked up by its name.",
            code="options-conflict",
        )


def check_not_managed(whose: str, uri: str, features: Iterable[str]) -> None:
    """Raise InvalidPipeline if, by these features of a table, its catalog decides which commits count."""
    if managing_features := MANAGING_FEATURES & set(features):
        raise managed_table_error(whose, uri, ", ".join(sorted(managing_features)))


def managed_table_error(whose: str, uri: str, what: str) -> InvalidPipeline:
    """Return the error for a table whose catalog decides which commits count; `what` shows that."""
    return InvalidPipeline(
        f"{whose}: the table at {uri} is managed by its catalog ({what}).",
        "The catalog decides which commits to it count. So its folder does not show what was published, and "
        "after a crash it would not be known whether a commit has happened.",
        f"Use an external table without that feature ({name_page('catalogs')}). Nothing was written.",
        code="table-managed",
    )


def table_uri(table: str) -> str:
    """Return the URI of the table's asset: whoever reads or writes the table by this name has the same one."""
    return f"catalog://{table.replace('.', '/')}"
