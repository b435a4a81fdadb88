"""Columns by name: for files without field ids, which readers need the table's name mapping for.

Spark's Parquet writer writes no ids into lists and maps, and readers want ids of all columns of a file or of none.
"""

from __future__ import annotations

from pyiceberg.table import Table, TableProperties
from pyiceberg.table.name_mapping import NameMapping, parse_mapping_from_json

from onceonly.errors import ActionNeeded, CannotPublish, OnceonlyError, StageAgain
from onceonly_iceberg.staged_files import StagedList

PROPERTY = TableProperties.DEFAULT_NAME_MAPPING


def require_same_columns(sink: str, table: Table, staged: StagedList) -> None:
    """Refuse files without ids whose names mean other columns by now.

    Raises:
        StageAgain: the table's columns have changed.
        ActionNeeded: the table's own mapping lacks a column.
    """
    if staged.has_ids:
        return
    written, current = table.schemas()[staged.schema_id], table.schema()
    names = {column.name: column.field_id for column in written.fields}
    now = {column.name: column.field_id for column in current.fields}
    if any(now.get(name) != number for name, number in names.items()):
        raise StageAgain(
            f"sink '{sink}': columns of {'.'.join(table.name())} have changed since the rows were staged.",
            "Files with lists or maps have no field ids, so their columns are known by name.",
            "onceonly recover PIPELINE",
            code="iceberg-columns-changed",
        )
    find_missing_properties(sink, table, staged, ActionNeeded)


def find_missing_properties(
    sink: str, table: Table, staged: StagedList, error: type[OnceonlyError] = CannotPublish
) -> dict[str, str]:
    """Return the property to set with the commit; empty: the table has it, or needs none."""
    if staged.has_ids:
        return {}
    text = table.properties.get(PROPERTY)
    if text is None:
        return {PROPERTY: table.schema().name_mapping.model_dump_json()}
    mapping: NameMapping = parse_mapping_from_json(text)
    by_name = {name: field.field_id for field in mapping.root for name in field.names}
    for column in table.schemas()[staged.schema_id].fields:
        if by_name.get(column.name) != column.field_id:
            raise error(
                f"sink '{sink}': the name mapping of {'.'.join(table.name())} lacks column '{column.name}'.",
                f"Its property {PROPERTY} does not map the name to field {column.field_id}: readers would see nulls.",
                "Correct or unset the property, then: onceonly recover PIPELINE. Nothing was published.",
                code="iceberg-name-mapping",
            )
    return {}
