"""Iceberg tables as targets of Onceonly: each row once. Imports no Iceberg, because DAG files import it."""

from onceonly_iceberg.config import IcebergSink

__all__ = ["IcebergSink"]
