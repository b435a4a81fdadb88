"""How a schema registry is reached: the extra of an Airflow connection, in the names of confluent-kafka's client.

connection = RegistryConnection.parse({"url": "https://…", "basic.auth.user.info": "name:password"}, "registry")
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from onceonly.errors import InvalidPipeline

LOGIN = "basic.auth.user.info"
SETTINGS = (
    *("url", LOGIN, "proxy"),
    *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password"),
    *(f"bearer.auth.{name}" for name in ("credentials.source", "token", "logical.cluster", "identity.pool.id")),
    *(f"bearer.auth.{name}" for name in ("client.id", "client.secret", "scope", "issuer.endpoint.url")),
)
SECRET = re.compile(r"user\.info|password|secret|token$|proxy")
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
            if not SECRET.search(key):
                continue
            for part in (value, *value.split(":", 1)):  # a login is a name and a password
                if len(part) > 3:
                    text = text.replace(part, "***")
        return text

    def invalid(self, why: str, todo: str) -> InvalidPipeline:
        return InvalidPipeline(
            f"the schema registry of the connection '{self.name}' cannot be used.", why, f"{todo} Nothing was written."
        )

    def __repr__(self) -> str:
        return f"<RegistryConnection {self.describe()}>"

    def _check(self) -> None:
        if missing := [name for name in NEEDED if find_spec(name) is None]:
            raise self.invalid(f"Not installed: {', '.join(missing)}.", "pip install 'onceonly[registry]'.")
        for url in self.settings.get("url", "").split(","):
            if urlsplit(url.strip()).scheme not in ("http", "https") or not urlsplit(url.strip()).hostname:
                raise self.invalid("'url' is missing, or is not an address.", "Set it in the extra: https://host:port.")
        if unknown := sorted(set(self.settings) - set(SETTINGS)):
            raise self.invalid(f"'{unknown[0]}' is not known.", "Correct its name (docs/schema-registry.md).")
        if ":" not in self.settings.get(LOGIN, ":"):
            raise self.invalid(f"'{LOGIN}' has no ':'.", "Write name:password.")

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
            raise self.invalid("It has several logins.", f"Keep one, in '{LOGIN}'.")
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
