"""A sink of Onceonly: rows into PostgreSQL tables, each exactly once."""

from onceonly_postgres.config import PostgresSink

__all__ = ["PostgresSink"]
