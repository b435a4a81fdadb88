"""Tokens for kafka-python, which has no OIDC client: OAuth 2 client credentials, cached until they expire soon.

authlib's OAuth2Session (1.9) is not used. What is asked for here would still be ours, around its one request:
- A login in UTF-8, as librdkafka and Java send it. authlib encodes it as Latin-1.
- A token without `expires_in` is used once. authlib takes it for one that never expires.
- A clock that nobody sets. authlib compares the time of day.
- An answer with an error status, or without a token, is refused. authlib takes any JSON object below status 500.
- Errors without text of the endpoint, which may repeat a secret. authlib's have its `error_description`.
"""

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

TOKEN_TIMEOUT = 10.0  # seconds for the endpoint's response
USED_PART_OF_LIFETIME = 0.8  # the part of a token's lifetime for which it is used
PREFIX = "sasl.oauthbearer."


class Tokens:
    """One client's tokens from one endpoint."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._url = settings[PREFIX + "token.endpoint.url"]
        # UTF-8, as the others do
        client_id, secret = settings[PREFIX + "client.id"].encode(), settings[PREFIX + "client.secret"].encode()
        self._login = HTTPBasicAuth(client_id, secret)
        self._form = {"grant_type": "client_credentials"}
        if scope := settings.get(PREFIX + "scope"):
            self._form["scope"] = scope
        self._token, self._until, self._lock = "", 0.0, Lock()

    def token(self) -> str:
        """Return a token that does not expire soon.

        Raises:
            NotCommitted: the endpoint returned none; the message names its address.
        """
        with self._lock:
            if not self._token or monotonic() > self._until:
                answer = self._request()
                self._token = str(answer["access_token"])
                self._until = monotonic() + USED_PART_OF_LIFETIME * float(answer.get("expires_in", 0))
            return self._token

    def _request(self) -> Any:
        """Return the endpoint's answer, which has an `access_token`."""
        try:
            response = requests.post(
                self._url,
                self._form,
                auth=self._login,
                timeout=TOKEN_TIMEOUT,
                verify=_trusted_certificates(),
                allow_redirects=False,
            )
            response.raise_for_status()
            answer = response.json()
            answer["access_token"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NotCommitted(
                f"no token from {self._url} for Kafka.",
                f"{type(error).__name__}: {error}.",
                "Check sasl.oauthbearer.client.id, .client.secret and .scope. This is safe to retry.",
                code="token-not-issued",
            ) from None
        return answer


def _trusted_certificates() -> str | bool:
    """Return the certificates that this machine trusts, as for all else in Python.

    requests would bring others of its own.
    """
    if os.environ.get("REQUESTS_CA_BUNDLE"):
        return True  # then that is what requests takes
    paths = ssl.get_default_verify_paths()
    return paths.cafile or paths.capath or True


def token_provider(connection: KafkaConnection) -> Any:
    """Return what kafka-python takes as `sasl_oauth_token_provider`."""
    extensions: dict[str, str] = {}
    for pair in connection.settings.get(PREFIX + "extensions", "").split(","):
        if "=" in pair:
            name, value = pair.split("=", 1)
            extensions[name] = value
    return _provider_class()(Tokens(connection.settings), extensions)


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
