"""Catalogs: how a table is opened, and what an error of one means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, NotInstalledError
from pyiceberg.table import Table

from onceonly.errors import ActionNeeded, InvalidPipeline, OnceonlyError, OutcomeUnknown, first_sentence
from onceonly.sinks import Context
from onceonly_iceberg.config import IcebergSink


class TableOpener:
    """Opens the table of a sink, each time as the catalog has it now.

    Args:
        properties: of the catalog, with those of the Airflow connection. They may hold secrets.
    """

    def __init__(self, config: IcebergSink, properties: Mapping[str, Any]) -> None:
        self.config = config
        self._properties = dict(properties)
        self._catalog: Catalog | None = None

    @classmethod
    def make(cls, config: IcebergSink, context: Context) -> TableOpener:
        properties = dict(config.properties)
        if config.connection:
            properties |= {name: str(value) for name, value in context.connection(config.connection).items()}
        return cls(config, properties)

    def find(self, unusable: type[OnceonlyError] = OutcomeUnknown) -> Table | None:
        """Return the table; None: there is none of that name.

        Args:
            unusable: what is raised where PyIceberg lacks a package. That says nothing of a commit by another machine.
        Raises:
            OutcomeUnknown: the catalog does not answer.
        """
        with require_answer(self.config, unusable):
            if self._catalog is None:
                self._catalog = load_catalog(self.config.catalog, **self._properties)
            try:
                return self._catalog.load_table(self.config.table)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    def open(self) -> Table:
        """Return the table. Raises InvalidPipeline: there is none of that name, or PyIceberg lacks a package."""
        table = self.find(InvalidPipeline)
        if table is None:
            raise InvalidPipeline(
                f"sink '{self.config.name}': there is no table '{self.config.table}' in {self.config.place}.",
                "Onceonly creates no Iceberg table: partitions and sort order are its owner's to choose.",
                f"CREATE TABLE {self.config.table} (…) USING iceberg, or correct the name. Nothing was written.",
                code="iceberg-table-missing",
            )
        return table

    def open_staged(self, table_uuid: str) -> Table:
        """Return the table for which rows were staged.

        Raises:
            ActionNeeded: it is not there, or another one is there.
        """
        table = self.find()
        if table is None or str(table.metadata.table_uuid) != table_uuid:
            found = "There is none." if table is None else f"It has the id {table.metadata.table_uuid}."
            raise ActionNeeded(
                f"sink '{self.config.name}': '{self.config.table}' is not the table for which the rows were staged.",
                f"They were staged for the table with the id {table_uuid}. {found}",
                "Bring that table back, then: onceonly recover PIPELINE. Or abort, and stage for the new one: onceonly "
                "abort PIPELINE EPOCH --reason …",
                code="iceberg-table-replaced",
            )
        return table


@contextmanager
def require_answer(config: IcebergSink, unusable: type[OnceonlyError] = OutcomeUnknown) -> Iterator[None]:
    """Raise OutcomeUnknown where catalog or storage fail, and `unusable` where PyIceberg lacks a package."""
    try:
        yield
    except OnceonlyError:
        raise
    except NotInstalledError as error:
        raise unusable(
            f"sink '{config.name}': PyIceberg cannot open {config.place} here.",
            first_sentence(error),
            "Install that extra of PyIceberg wherever Onceonly runs, and try again.",
            code="iceberg-package-missing",
        ) from error
    except Exception as error:
        raise OutcomeUnknown(
            f"sink '{config.name}': '{config.table}' in {config.place} does not answer.",
            first_sentence(error),
            "Nothing was deleted. Trying again is safe: onceonly recover",
            code="iceberg-no-answer",
        ) from error
