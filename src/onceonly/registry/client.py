"""What a schema registry is asked, in our words and with our errors."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import finalize

from onceonly.checkpoint.model import canonical
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.registry.connection import RegistryConnection

REFUSED = (401, 403)
MISSING = 404


@dataclass(frozen=True)
class Schema:
    """A registered schema, which never changes.

    Args:
        kind: AVRO, JSON or PROTOBUF.
        references: by the name under which its text uses them.
    """

    id: int
    kind: str
    text: str
    references: tuple[tuple[str, Schema], ...] = ()

    @property
    def sha256(self) -> str:
        """Of all that decides how bytes are read by it; the same wherever it is registered."""
        parts = [self.kind, self.text, [[name, schema.sha256] for name, schema in self.references]]
        return hashlib.sha256(canonical(parts).encode()).hexdigest()


@dataclass(frozen=True)
class Version:
    """A schema as a version of a subject."""

    subject: str
    version: int
    schema: Schema


class _Gone(Exception):
    """What a registry has named a moment before, it does not have."""


class Registry:
    """One registry. Each answer is asked for once.

    Raises, every call:
        InvalidPipeline: the registry refuses the credentials, or what was asked.
        NotCommitted: it does not answer; safe to retry.
    """

    def __init__(self, connection: RegistryConnection) -> None:
        self.connection = connection
        self._known: dict[tuple[int, str | None], Schema | None] = {}

    def schema(self, id: int, compiled: bool = False) -> Schema | None:
        """The schema of that id; None if the registry has none.

        Args:
            compiled: Protobuf as base64 of a FileDescriptorProto, instead of its text.
        """
        form = _form(compiled)
        if (id, form) not in self._known:
            with self._asking(f"schema id {id}"):
                client = self._compiled_client if compiled else self._client
                found = _found(lambda: client.get_schema(id, fmt=form))
                self._known[id, form] = self._schema(id, found, form) if found else None
        return self._known[id, form]

    def latest(self, subject: str, compiled: bool = False) -> Version | None:
        """The latest version of a subject; None if there is no such subject. `compiled`: as for `schema`."""
        form = _form(compiled)
        with self._asking(f"subject '{subject}'"):
            found = _found(lambda: self._client.get_latest_version(subject, fmt=form))
            return found and Version(subject, found.version, self._of_version(found, form))

    def registered(self, subject: str, kind: str, text: str) -> int | None:
        """The id of a schema that is a version of the subject; None if it is not."""
        with self._asking(f"subject '{subject}'"):
            found = _found(lambda: self._client.lookup_schema(subject, self._unregistered(kind, text)))
            return int(found.schema_id) if found else None

    def accepts(self, subject: str, kind: str, text: str) -> bool:
        """Whether the subject would take the schema as its next version; a new subject takes any."""
        with self._asking(f"subject '{subject}'"):
            if _found(lambda: self._client.get_latest_version(subject)) is None:
                return True
            return bool(self._client.test_compatibility(subject, self._unregistered(kind, text)))

    def register(self, subject: str, kind: str, text: str) -> int:
        """Make it the subject's next version, unless it is one; the id."""
        with self._asking(f"subject '{subject}'"):
            return int(self._client.register_schema(subject, self._unregistered(kind, text)))

    def _unregistered(self, kind: str, text: str) -> Any:
        from confluent_kafka.schema_registry import Schema as Unregistered

        return Unregistered(text, kind)

    def _schema(self, id: int, found: Any, form: str | None) -> Schema:
        referred = found.references or ()
        references = tuple((each.name, self._version(each.subject, each.version, form)) for each in referred)
        return Schema(id, found.schema_type or "AVRO", found.schema_str, references)

    def _version(self, subject: str, version: int, form: str | None) -> Schema:
        return self._of_version(self._client.get_version(subject, version, deleted=True, fmt=form), form)

    def _of_version(self, found: Any, form: str | None) -> Schema:
        """The schema that a version names. In another form than its text it is asked for by its id.

        Karapace knows `format` there alone, and shows .proto text for a version.
        """
        if form is None:
            return self._schema(found.schema_id, found.schema, form)
        by_id = self.schema(int(found.schema_id), compiled=True)
        if by_id is None:
            raise _Gone(f"it names schema {found.schema_id} in a version, and has none of that id")
        return by_id

    @cached_property
    def _compiled_client(self) -> Any:
        """Another one, because a client remembers a schema by its id, in whichever form it was asked for."""
        return self._open()

    @cached_property
    def _client(self) -> Any:
        return self._open()

    def _open(self) -> Any:
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it names every request
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # raised by authlib's own import
            from confluent_kafka.schema_registry import SchemaRegistryClient
        try:
            client = SchemaRegistryClient(self.connection.client())
            finalize(self, client.close)
            return client
        except (ValueError, TypeError, OSError) as error:
            why = self.connection.scrub(f"{type(error).__name__}: {error}.")
            raise self.connection.invalid(why, "Correct the connection's extra.") from None

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Its errors as ours. Whatever else is raised on the way is the network's, or an answer that is no JSON."""
        client = self._client
        from confluent_kafka.schema_registry import SchemaRegistryError

        assert client
        try:
            yield
        except SchemaRegistryError as error:
            raise self._answered(what, error) from None
        except (InvalidPipeline, NotCommitted):
            raise
        except Exception as error:
            raise NotCommitted(
                f"the schema registry {self.connection.describe()} does not answer.",
                self.connection.scrub(f"Asked for {what}: {type(error).__name__}: {error}."),
                "Retry when it does, or correct the connection. Nothing was written.",
            ) from None

    def _answered(self, what: str, error: Any) -> NotCommitted:
        status, code = error.http_status_code, error.error_code
        said = self.connection.scrub(f"Asked for {what}, it answers {status} ({code}): {error.error_message}.")
        where = f"the schema registry {self.connection.describe()}"
        if status in REFUSED:
            todo = "Correct the connection's credentials, or grant the right to read it. Nothing was written."
            return InvalidPipeline(f"{where} refuses {what}.", said, todo)
        if 400 <= status < 500 and status not in (408, 429):
            return InvalidPipeline(f"{where} has no usable {what}.", said, "Correct that. Nothing was written.")
        return NotCommitted(f"{where} fails.", said, "Retry when it works again. Nothing was written.")


def _form(compiled: bool) -> str | None:
    return "serialized" if compiled else None


def _found(ask: Any) -> Any:
    from confluent_kafka.schema_registry import SchemaRegistryError

    try:
        return ask()
    except SchemaRegistryError as error:
        if error.http_status_code == MISSING:
            return None
        raise
