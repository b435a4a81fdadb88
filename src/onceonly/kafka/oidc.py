"""Tokens for kafka-python, which has no OIDC client: OAuth 2 client credentials, cached until they expire soon."""

from __future__ import annotations

import os
import ssl
import warnings
from collections.abc import Mapping
from functools import cache
from threading import Lock
from time import monotonic
from typing import Any

import requests
from requests.auth import HTTPBasicAuth

from onceonly.errors import NotCommitted
from onceonly.kafka.connection import KafkaConnection

TIMEOUT = 10.0  # seconds for the endpoint's response
FRESH = 0.8  # the part of a token's lifetime for which it is used
PREFIX = "sasl.oauthbearer."


class Tokens:
    """One client's tokens from one endpoint."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._url = settings[PREFIX + "token.endpoint.url"]
        login = (settings[PREFIX + name].encode() for name in ("client.id", "client.secret"))  # UTF-8, as the others do
        self._login = HTTPBasicAuth(*login)
        scope = settings.get(PREFIX + "scope")
        self._form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
        self._token, self._until, self._lock = "", 0.0, Lock()

    def token(self) -> str:
        """A token that does not expire soon.

        Raises:
            NotCommitted: the endpoint returned none; the message names its address.
        """
        with self._lock:
            if not self._token or monotonic() > self._until:
                received = self._request()
                self._token = str(received["access_token"])
                self._until = monotonic() + FRESH * float(received.get("expires_in", 0))
            return self._token

    def _request(self) -> Any:
        try:
            response = requests.post(
                self._url, self._form, auth=self._login, timeout=TIMEOUT, verify=_trusted(), allow_redirects=False
            )
            response.raise_for_status()
            received = response.json()
            received["access_token"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NotCommitted(
                f"no token from {self._url} for Kafka.",
                f"{type(error).__name__}: {error}.",
                "Check sasl.oauthbearer.client.id, .client.secret and .scope. This is safe to retry.",
            ) from None
        return received


def _trusted() -> str | bool:
    """The certificates that this machine trusts, as for all else in Python; requests brings others of its own."""
    if os.environ.get("REQUESTS_CA_BUNDLE"):
        return True  # then that is what requests takes
    paths = ssl.get_default_verify_paths()
    return paths.cafile or paths.capath or True


def token_provider(connection: KafkaConnection) -> Any:
    """What kafka-python takes as `sasl_oauth_token_provider`."""
    extensions = connection.settings.get(PREFIX + "extensions", "")
    pairs = dict(pair.split("=", 1) for pair in extensions.split(",") if "=" in pair)
    return _provider_class()(Tokens(connection.settings), pairs)


@cache
def _provider_class() -> type[Any]:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # raised by kafka-python's own import
        from kafka.net.sasl.oauth import AbstractTokenProvider

    class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
        def __init__(self, tokens: Tokens, extensions: Mapping[str, str]) -> None:
            self._tokens, self._extensions = tokens, extensions

        def token(self) -> str:
            return self._tokens.token()

        def extensions(self) -> Mapping[str, str]:
            return self._extensions

    return TokenProvider
