"""How the server is reached, and what every transaction on it has in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Composed, Identifier

from onceonly.errors import InvalidPipeline, OutcomeUnknown

# For a lock, and for a process that hangs and holds locks, unless the connection's `options` say otherwise
TIMEOUT = "60s"
CONNECT_TIMEOUT_SECONDS = 15
APPLICATION = "onceonly"
# An asynchronous commit may be lost after it was confirmed. `remote_write` and more are left as they are.
DURABLE = """
    SELECT set_config('synchronous_commit', 'on', true)
    WHERE current_setting('synchronous_commit') IN ('off', 'local')
"""
WITHOUT_LIMIT = """
    SELECT set_config(name, %(limit)s, true) FROM unnest(%(names)s::text[]) AS name WHERE current_setting(name) = '0'
"""
LOCK_TIMEOUT_SETTING, IDLE_TIMEOUT_SETTING = "lock_timeout", "idle_in_transaction_session_timeout"
Row = tuple[Any, ...]
Cursor = psycopg.Cursor[Row]


@dataclass(frozen=True)
class Server:
    """One database, as a connection's settings describe it.

    Args:
        settings: of libpq. They may contain a password, so that they are never shown.
        connection: the id of the Airflow connection, for messages.
        sink: the name of the sink, for messages.
    """

    settings: Mapping[str, str] = field(repr=False)
    connection: str
    sink: str

    @classmethod
    def parse(cls, extra: Mapping[str, Any], connection: str, sink: str) -> Server:
        """Return the server of a connection's extra. Raises InvalidPipeline: a setting is none of libpq's."""
        settings = {"connect_timeout": str(CONNECT_TIMEOUT_SECONDS), "application_name": APPLICATION}
        for name, value in extra.items():
            if value is not None:
                settings[name] = str(value)
        try:
            make_conninfo("", **settings)
        except psycopg.ProgrammingError:
            unknown = [name for name in sorted(settings) if not _is_setting(name)]
            raise InvalidPipeline(
                f"the Airflow connection '{connection}' is none of PostgreSQL.",
                f"Its extra has {', '.join(map(repr, unknown)) or 'a value'} that libpq does not know.",
                'Write {"extra": {"host": "…", "dbname": "…", "user": "…", "password": "…"}}. Nothing was written.',
                code="postgres-connection-invalid",
            ) from None
        return cls(settings, connection, sink)

    @contextmanager
    def transaction(self, is_trial: bool = False, may_idle: bool = False) -> Iterator[Cursor]:
        """Run one transaction on the primary, durable once it is committed.

        Args:
            is_trial: it is rolled back.
            may_idle: whoever reads from it may take long over it. It holds no lock that others wait for.
        Raises:
            OutcomeUnknown: the server does not answer, takes no writes, or does not say whether it has committed.
            psycopg.Error: a statement has failed, and the transaction is rolled back.
        """
        with self._connect() as connection, connection.cursor() as cursor:
            self._begin(cursor)
            cursor.execute(DURABLE)
            limited = [LOCK_TIMEOUT_SETTING] if may_idle else [LOCK_TIMEOUT_SETTING, IDLE_TIMEOUT_SETTING]
            cursor.execute(WITHOUT_LIMIT, {"limit": TIMEOUT, "names": limited})
            yield cursor
            if not is_trial:
                connection.commit()  # an error in the server's answer, as of a deferred constraint, means a rollback

    def _begin(self, cursor: Cursor) -> None:
        """Begin a transaction that may write. A replica cannot, and may not show yet what is published."""
        try:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED READ WRITE")
        except psycopg.errors.FeatureNotSupported as error:
            raise self._no_answer_error(error) from error

    @contextmanager
    def _connect(self) -> Iterator[psycopg.Connection[Row]]:
        """Open a connection, and close it without a commit."""
        # A statement that is prepared would not be found behind a pool of connections.
        try:
            connection = psycopg.connect(**self.settings, prepare_threshold=None)  # type: ignore[arg-type]
        except psycopg.OperationalError as error:
            raise self._not_connected_error(error) from error
        try:
            yield connection
        except psycopg.Error as error:
            if connection.broken or (error.sqlstate or "").startswith(UNANSWERED):
                raise self._no_answer_error(error) from error
            raise
        finally:
            connection.close()

    def _not_connected_error(self, error: psycopg.Error) -> OutcomeUnknown:
        """Return the error of a server that is away, or refuses the login: the client does not tell which."""
        return self._unreachable_error(
            "cannot be reached, or refuses the login",
            "Start the server, or correct the connection, then: onceonly recover",
            error,
        )

    def _no_answer_error(self, error: psycopg.Error) -> OutcomeUnknown:
        """Return the error of a server that broke off, or takes no writes."""
        return self._unreachable_error("does not answer", "Try again when it can be reached: onceonly recover", error)

    def _unreachable_error(self, what: str, todo: str, error: psycopg.Error) -> OutcomeUnknown:
        """Return the error of a server of which nothing is known now. `what`: it does, as a predicate."""
        return OutcomeUnknown(
            f"sink '{self.sink}': the database of the connection '{self.connection}' {what}.",
            self.describe(error),
            f"Nothing is lost: what it has committed, it shows. {todo}",
            "postgres-unreachable",
        )

    def describe(self, error: psycopg.Error) -> str:
        """Return what the server says, in one line, without values of rows and without the password."""
        text = error.diag.message_primary or str(error).strip().splitlines()[0] if str(error) else ""
        password = self.settings.get("password")
        if password:
            text = text.replace(password, "***")
        state = f" (SQLSTATE {error.sqlstate})" if error.sqlstate else ""
        return f"{type(error).__name__}: {text}{state}."


# The beginnings of SQLSTATEs that say nothing of the statement: no connection, no room or memory, an operator or the
# system; and a server that takes no writes. Psycopg's classes do not group them: DiskFull is no InsufficientResources.
UNANSWERED = ("08", "53", "57", "58", "25006")


def _is_setting(name: str) -> bool:
    try:
        make_conninfo("", **{name: "1"})
    except psycopg.ProgrammingError:
        return False
    return True


def qualified(schema: str, name: str) -> Composed:
    """Return a table's name as SQL."""
    return SQL("{}.{}").format(Identifier(schema), Identifier(name))
