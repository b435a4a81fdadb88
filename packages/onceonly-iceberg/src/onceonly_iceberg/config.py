"""What users write in `sinks=[…]`: a table of a catalog. Imports no Iceberg, because DAG files import it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from onceonly.errors import InvalidPipeline
from onceonly.sinks import SinkConfig

MAIN = "main"
SECRET_NAME = re.compile(r"(?i)secret|password|passwd|token|credential|access-key|account-key|sas-")


@dataclass(frozen=True)
class IcebergSink(SinkConfig):
    """An existing Iceberg table, to which each checkpoint is appended once.

    Args:
        table: its name in the catalog with its namespace, such as "lake.flights".
        catalog: the name of the catalog, as in PyIceberg's configuration (.pyiceberg.yaml or PYICEBERG_CATALOG__…).
        connection: the Airflow connection whose extra holds the catalog's properties, such as uri and credential.
        properties: those without secrets, such as {"type": "rest", "uri": "https://…"}. They are stored with every
            checkpoint.
        branch: to which snapshots are published. A branch that does not exist is made by the first publication.
    """

    table: str
    catalog: str = "default"
    connection: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    branch: str = MAIN

    kind = "iceberg"
    writer = "onceonly_iceberg.sink:IcebergWriter.make"
    inspectable = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if "." not in self.table.strip("."):
            raise InvalidPipeline(
                f"sink '{self.name}': '{self.table}' is not the name of a table.",
                "A table's name has its namespace, such as 'lake.flights'.",
                "Correct table=…. Nothing was written.",
                code="iceberg-table-name",
            )
        for name, value in self.properties.items():
            if SECRET_NAME.search(name) or _has_password(value):
                raise InvalidPipeline(
                    f"sink '{self.name}': the property '{name}' holds a secret.",
                    "A sink's definition is stored with every checkpoint, and shown on pages.",
                    "Put it into an Airflow connection (connection=…) or into PyIceberg's own configuration. Nothing "
                    "was written.",
                    code="iceberg-secret",
                )

    def targets(self) -> tuple[str, ...]:
        return (f"branch '{self.branch}' of Iceberg table '{self.table}' in {self.place}",)

    @property
    def place(self) -> str:
        """The catalog, by all that tells it from others."""
        parts = [f"catalog '{self.catalog}'"]
        if self.connection:
            parts.append(f"connection '{self.connection}'")
        if "uri" in self.properties:
            parts.append(self.properties["uri"])
        return ", ".join(parts)

    def asset_uris(self) -> tuple[str, ...]:
        return (f"iceberg://{self.catalog}/{self.table.replace('.', '/')}",)


def _has_password(value: str) -> bool:
    try:
        return bool(urlsplit(value).password)
    except ValueError:
        return False
