"""What a schema registry is asked, in our words and with our errors."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import ssl
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit
from weakref import finalize

from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.waits import wait_for

DENIED_STATUSES = (401, 403)
NOT_FOUND_STATUS = 404
LOGIN = "basic.auth.user.info"
SETTINGS = (
    *("url", LOGIN, "proxy"),
    *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password"),
    *("bearer.auth.credentials.source", "bearer.auth.token", "bearer.auth.logical.cluster"),
    *("bearer.auth.identity.pool.id", "bearer.auth.client.id", "bearer.auth.client.secret", "bearer.auth.scope"),
    "bearer.auth.issuer.endpoint.url",
)
SECRET_SETTING = re.compile(r"user\.info|password|secret|token$|proxy")
NEEDED = ("authlib", "cachetools", "certifi", "confluent_kafka", "httpx")


@dataclass(frozen=True, repr=False)
class RegistryConnection:
    """Settings of one registry. Use `parse`, which checks them.

    Args:
        name: of the Airflow connection.
    """

    settings: Mapping[str, str]
    name: str

    @classmethod
    def parse(cls, settings: Mapping[str, Any], name: str) -> RegistryConnection:
        """Return the connection with these settings; those that are None are left out.

        Raises:
            InvalidPipeline: a setting is missing or not known; no value of one is shown.
        """
        connection = cls({key: str(value) for key, value in settings.items() if value is not None}, name)
        connection._check()
        return cls(connection._without_login_in_url(), name)

    def client(self) -> dict[str, Any]:
        """Return the settings for `SchemaRegistryClient`. Certificates are trusted as everywhere else in Python."""
        return {
            "ssl.ca.location": _default_certificates(),
            **self.settings,
            "timeout": 10.0,
            "max.retries": 2,
            "retries.wait.ms": 200,
            "retries.max.wait.ms": 1000,
        }

    def describe(self) -> str:
        """Return address and connection, for messages; never a secret."""
        return f"{self.settings['url']} (connection '{self.name}')"

    def scrub(self, text: str) -> str:
        """Return `text` with this connection's secrets masked."""
        for key, value in self.settings.items():
            if not SECRET_SETTING.search(key):
                continue
            for part in (value, *value.split(":", 1)):  # a login is a name and a password
                if len(part) > 3:
                    text = text.replace(part, "***")
        return text

    def setting_error(self, why: str, todo: str, code: str = "registry-connection-invalid") -> InvalidPipeline:
        """Return the error for a setting of this connection."""
        return InvalidPipeline(
            f"the schema registry of the connection '{self.name}' cannot be used.",
            why,
            f"{todo} Nothing was written.",
            code=code,
        )

    def __repr__(self) -> str:
        return f"<RegistryConnection {self.describe()}>"

    def _check(self) -> None:
        if missing := [name for name in NEEDED if find_spec(name) is None]:
            raise self.setting_error(
                f"Not installed: {', '.join(missing)}.", "pip install 'onceonly[registry]'.", code="package-missing"
            )
        for url in self.settings.get("url", "").split(","):
            if urlsplit(url.strip()).scheme not in ("http", "https") or not urlsplit(url.strip()).hostname:
                raise self.setting_error(
                    "'url' is missing, or is not an address.", "Set it in the extra: https://host:port."
                )
        if unknown := sorted(set(self.settings) - set(SETTINGS)):
            raise self.setting_error(
                f"'{unknown[0]}' is not known.", f"Correct its name ({name_page('schema-registry')})."
            )
        if ":" not in self.settings.get(LOGIN, ":"):
            raise self.setting_error(f"'{LOGIN}' has no ':'.", "Write name:password.")

    def _without_login_in_url(self) -> dict[str, str]:
        """Return the settings with a login in an address moved to the setting for it.

        In the address it would be part of every message of the client that names the address.

        Raises:
            InvalidPipeline: there are several logins.
        """
        logins, plain_urls = set(), []
        for url in self.settings["url"].split(","):
            parts = urlsplit(url.strip())
            if parts.username:
                logins.add(f"{unquote(parts.username)}:{unquote(parts.password or '')}")
            plain_urls.append(urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])))
        if len(logins | {self.settings.get(LOGIN, "")} - {""}) > 1:
            raise self.setting_error("It has several logins.", f"Keep one, in '{LOGIN}'.")
        settings = {**self.settings, "url": ",".join(plain_urls)}
        if logins:
            settings[LOGIN] = logins.pop()
        return settings


def _default_certificates() -> str | None:
    """Return the file or folder of the certificates that Python trusts; None: the client finds it itself."""
    if os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR"):
        return None  # the client looks there itself
    paths = ssl.get_default_verify_paths()
    return paths.cafile or paths.capath


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
        """The hash of all that decides how bytes are read by it; the same wherever it is registered."""
        parts = [self.kind, self.text, [[name, schema.sha256] for name, schema in self.references]]
        text = json.dumps(parts, separators=(",", ":"))  # stored in ranges: it must stay as it is
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Version:
    """A schema as a version of a subject."""

    subject: str
    version: int
    schema: Schema


class _Gone(Exception):
    """A registry does not have what it has named a moment before."""


class Registry:
    """One registry. Each answer is asked for once.

    Raises, every call:
        InvalidPipeline: the registry refuses the credentials, or what was asked.
        NotCommitted: it does not answer; safe to retry.
    """

    def __init__(self, connection: RegistryConnection) -> None:
        self.connection = connection
        self._schemas: dict[tuple[int, str | None], Schema | None] = {}  # by id and form; None: there is none

    def find_schema(self, id: int, compiled: bool = False) -> Schema | None:
        """Return the schema of that id; None if the registry has none.

        Args:
            compiled: Protobuf as base64 of a FileDescriptorProto, instead of its text.
        """
        form = _form(compiled)
        if (id, form) not in self._schemas:
            with self._translating_errors(f"schema id {id}"):
                client = self._compiled_client if compiled else self._client
                answer = _ask(lambda: client.get_schema(id, fmt=form))
                schema = None
                if answer:
                    schema = self._read_schema(id, answer, form)
                self._schemas[id, form] = schema
        return self._schemas[id, form]

    def find_latest(self, subject: str, compiled: bool = False) -> Version | None:
        """Return the latest version of a subject; None if there is none. `compiled`: as for `find_schema`."""
        form = _form(compiled)
        with self._translating_errors(f"subject '{subject}'"):
            answer = _ask(lambda: self._client.get_latest_version(subject, fmt=form))
            return answer and Version(subject, answer.version, self._schema_of_version(answer, form))

    def find_id(self, subject: str, kind: str, text: str) -> int | None:
        """Return the id of a schema that is a version of the subject; None if it is not."""
        with self._translating_errors(f"subject '{subject}'"):
            answer = _ask(lambda: self._client.lookup_schema(subject, _client_schema(kind, text)))
            if answer is None:
                return None
            return int(answer.schema_id)

    def accepts(self, subject: str, kind: str, text: str) -> bool:
        """Return whether the subject would take the schema as its next version; a new subject takes any."""
        with self._translating_errors(f"subject '{subject}'"):
            if _ask(lambda: self._client.get_latest_version(subject)) is None:
                return True
            return bool(self._client.test_compatibility(subject, _client_schema(kind, text)))

    def register(self, subject: str, kind: str, text: str) -> int:
        """Make the schema the subject's next version, unless it is one; returns its id."""
        with self._translating_errors(f"subject '{subject}'"):
            return int(self._client.register_schema(subject, _client_schema(kind, text)))

    def _read_schema(self, id: int, answer: Any, form: str | None) -> Schema:
        """Return the schema of the client's answer, with all that it refers to."""
        references = []
        for reference in answer.references or ():
            references.append((reference.name, self._read_version(reference.subject, reference.version, form)))
        return Schema(id, answer.schema_type or "AVRO", answer.schema_str, tuple(references))

    def _read_version(self, subject: str, version: int, form: str | None) -> Schema:
        return self._schema_of_version(self._client.get_version(subject, version, deleted=True, fmt=form), form)

    def _schema_of_version(self, answer: Any, form: str | None) -> Schema:
        """Return the schema that a version names. In another form than its text it is asked for by its id.

        Karapace knows `format` there alone, and shows .proto text for a version.
        """
        if form is None:
            return self._read_schema(answer.schema_id, answer.schema, form)
        schema = self.find_schema(int(answer.schema_id), compiled=True)
        if schema is None:
            raise _Gone(f"it names schema {answer.schema_id} in a version, and has none of that id")
        return schema

    @cached_property
    def _compiled_client(self) -> Any:
        """Another client, because one remembers a schema by its id, in whichever form it was asked for."""
        return self._open_client()

    @cached_property
    def _client(self) -> Any:
        return self._open_client()

    def _open_client(self) -> Any:
        """Return a client of the registry, which is closed with this object. Raises InvalidPipeline."""
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it names every request
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # raised by authlib's own import
            from confluent_kafka.schema_registry import SchemaRegistryClient
        try:
            client = SchemaRegistryClient(self.connection.client())
            finalize(self, client.close)
            return client
        except (ValueError, TypeError, OSError) as error:
            why = self.connection.scrub(f"{type(error).__name__}: {error}.")
            raise self.connection.setting_error(why, "Correct the connection's extra.") from None

    @contextmanager
    def _translating_errors(self, what: str) -> Iterator[None]:
        """Raise the client's errors as ours; `what` was asked for.

        Whatever else is raised on the way is the network's, or an answer that is no JSON.
        """
        client = self._client  # first: `_open_client` imports the module without its deprecation warnings
        from confluent_kafka.schema_registry import SchemaRegistryError

        assert client
        try:
            with wait_for(f"the schema registry {self.connection.describe()}"):
                yield
        except SchemaRegistryError as error:
            raise self._error_of_answer(what, error) from None
        except (InvalidPipeline, NotCommitted):
            raise
        except Exception as error:
            raise NotCommitted(
                f"the schema registry {self.connection.describe()} does not answer.",
                self.connection.scrub(f"Asked for {what}: {type(error).__name__}: {error}."),
                "Retry when it does, or correct the connection. Nothing was written.",
                code="registry-unreachable",
            ) from None

    def _error_of_answer(self, what: str, error: Any) -> NotCommitted:
        """Return the error for an answer by its HTTP status: InvalidPipeline where another try would not help."""
        status, code = error.http_status_code, error.error_code
        why = self.connection.scrub(f"Asked for {what}, it answers {status} ({code}): {error.error_message}.")
        where = f"the schema registry {self.connection.describe()}"
        if status in DENIED_STATUSES:
            todo = "Correct the connection's credentials, or grant the right to read it. Nothing was written."
            return InvalidPipeline(f"{where} refuses {what}.", why, todo, code="registry-access-denied")
        if 400 <= status < 500 and status not in (408, 429):
            todo = "Correct that. Nothing was written."
            return InvalidPipeline(f"{where} has no usable {what}.", why, todo, code="registry-request-refused")
        todo = "Retry when it works again. Nothing was written."
        return NotCommitted(f"{where} fails.", why, todo, code="registry-unreachable")


def _form(compiled: bool) -> str | None:
    """Return the form in which the client asks for a schema; None: as its text."""
    return "serialized" if compiled else None


def _client_schema(kind: str, text: str) -> Any:
    """Return a schema as the client takes it."""
    from confluent_kafka.schema_registry import Schema as ClientSchema

    return ClientSchema(text, kind)


def _ask(request: Any) -> Any:
    """Return the answer to a request; None: the registry does not have what was asked for."""
    from confluent_kafka.schema_registry import SchemaRegistryError

    try:
        return request()
    except SchemaRegistryError as error:
        if error.http_status_code == NOT_FOUND_STATUS:
            return None
        raise
