"""One connection to Kafka in librdkafka's settings; `client_settings` translates it for the other clients.

    connection = KafkaConnection.parse({"bootstrap.servers": "…", "security.protocol": "SASL_SSL", …}, "kafka_default")
    confluent_kafka.Producer({**connection.librdkafka(), "transactional.id": …})
    kafka.KafkaAdminClient(**kafka_python_arguments(connection), client_id=…)
    options = {f"kafka.{key}": value for key, value in java_options(connection).items()}
    spark.read.format("kafka").options(**options)

A security setting is translated, or refused by name. A setting that tunes one client (linger.ms, group.id …) is passed
to librdkafka only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from onceonly.errors import InvalidPipeline

ALIASES = {"sasl.mechanisms": "sasl.mechanism", "metadata.broker.list": "bootstrap.servers"}
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
OIDC = (
    *("sasl.oauthbearer.method", "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret"),
    "sasl.oauthbearer.token.endpoint.url",
)
NEEDS = {
    "PLAIN": ("sasl.username", "sasl.password"),
    "SCRAM-SHA-256": ("sasl.username", "sasl.password"),
    "SCRAM-SHA-512": ("sasl.username", "sasl.password"),
    "OAUTHBEARER": OIDC,
}
SPELLINGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {  # setting -> meaning -> accepted spellings, in any case
    "enable.ssl.certificate.verification": {"true": ("true", "t", "1"), "false": ("false", "f", "0")},
    "ssl.endpoint.identification.algorithm": {"https": ("https",), "none": ("none", "")},  # empty: as Java writes it
}
SECRET_PROPERTY = re.compile(r"password|passphrase|secret|key\.pem|assertion|oauthbearer\.config")
CLIENTS = ("confluent_kafka", "fastavro", "kafka")  # modules of the extra `kafka` that every use needs
DENIED = (29, 30, 31, 53)  # topic, group, cluster and transactional id authorization failed; the same in all clients
GUARDED = re.compile(r"(enable\.)?(ssl|sasl|security|https)\.")  # settings that no translation may silently leave out


def require_clients() -> None:
    """Raise InvalidPipeline if a package of the extra `kafka` is missing, before anything uses it."""
    if missing := [name for name in CLIENTS if find_spec(name) is None]:
        raise InvalidPipeline(
            "Kafka cannot be used in this environment.",
            f"Not installed: {', '.join(missing)}.",
            "Install them: pip install 'onceonly[kafka]'. Nothing was written.",
            code="package-missing",
        )


class Secret(str):
    """A string whose repr is masked, so that a client which logs its configuration does not show it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


@dataclass(frozen=True, repr=False)
class KafkaConnection:
    """How to reach the brokers of one cluster. Use `parse` or `plaintext`, which check it.

    Args:
        settings: in librdkafka's names, complete and consistent.
        name: of the Airflow connection, for error messages.
    """

    settings: Mapping[str, str]
    name: str | None = None

    @classmethod
    def parse(cls, settings: Mapping[str, Any], name: str | None = None) -> KafkaConnection:
        """Accept settings as users write them: aliases, booleans, protocol and mechanism in any case.

        Raises:
            InvalidPipeline: a setting is missing or contradicts another; the message names it.
        """
        plain: dict[str, str] = {}
        for key, value in settings.items():
            if value is not None:
                plain[ALIASES.get(key, key)] = _text(key, value)
        for key in ("security.protocol", "sasl.mechanism"):
            if key in plain:
                plain[key] = plain[key].upper()
        require_clients()
        connection = cls({"security.protocol": "PLAINTEXT", **plain}, name)
        connection._check()
        return cls({key: connection._normalize(key, value) for key, value in connection.settings.items()}, name)

    @classmethod
    def plaintext(cls, bootstrap: str) -> KafkaConnection:
        """Return a connection to bare addresses, without encryption and authentication."""
        return cls.parse({"bootstrap.servers": bootstrap})

    @property
    def bootstrap(self) -> str:
        """host:port, comma-separated."""
        return self.settings["bootstrap.servers"]

    @property
    def protocol(self) -> str:
        """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        return self.settings["security.protocol"]

    @property
    def mechanism(self) -> str | None:
        """The SASL mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER."""
        return self.settings["sasl.mechanism"] if self.protocol.startswith("SASL_") else None

    def librdkafka(self) -> dict[str, str]:
        """Return all settings for confluent-kafka, tuning included. The caller adds its own on top."""
        return {key: _mask(key, value) for key, value in self.settings.items()}

    def scrub(self, text: str) -> str:
        """Return `text` with this connection's secrets masked: a client may have put one into an error."""
        for key, value in self.settings.items():
            if SECRET_PROPERTY.search(key) and len(value) > 3:
                text = text.replace(value, "***")
        return text

    def describe(self) -> str:
        """Return address, protocol and mechanism, for messages; never a secret."""
        if self.protocol == "PLAINTEXT" and not self.name:
            return self.bootstrap
        details = self.protocol
        if self.mechanism:
            details += f" {self.mechanism}"
        if self.name:
            details += f", connection {self.name!r}"
        return f"{self.bootstrap} ({details})"

    def __repr__(self) -> str:
        return f"<KafkaConnection {self.describe()}>"

    def setting_error(self, what: str, todo: str) -> InvalidPipeline:
        """Return the error for a setting of this connection."""
        connection = "the Kafka connection"
        if self.name:
            connection += f" '{self.name}'"
        return InvalidPipeline(
            f"{connection} cannot be used.", what, f"{todo} Nothing was written.", code="kafka-connection-invalid"
        )

    def refuse_others(self, client: str, translated: Iterable[str]) -> None:
        """Refuse a security setting that is not in `translated`."""
        for key in sorted(set(self.settings) - set(translated)):
            if GUARDED.match(key):
                raise self.setting_error(f"'{key}' has no translation for {client}.", "Remove it, or correct its name.")

    def _normalize(self, key: str, text: str) -> str:
        """Return one spelling for all clients: a client takes a spelling that it does not know for the opposite."""
        if key not in SPELLINGS:
            return text
        for meaning, spellings in SPELLINGS[key].items():
            if text.lower() in spellings:
                return meaning
        raise self.setting_error(f"'{key}' is {text!r}.", f"Write one of {', '.join(SPELLINGS[key])}.")

    def _check(self) -> None:
        if not self.settings.get("bootstrap.servers"):
            raise self.setting_error("'bootstrap.servers' is missing.", "Add it: host:port, comma-separated.")
        if self.protocol not in PROTOCOLS:
            raise self.setting_error(
                f"'security.protocol' is {self.protocol!r}.", f"Use one of {', '.join(PROTOCOLS)}."
            )
        for key in self.settings:
            if key.endswith("_cb"):
                raise self.setting_error(f"'{key}' is a callback; a connection holds settings only.", "Remove it.")
        if "transactional.id" in self.settings:
            raise self.setting_error(
                "'transactional.id' is set; Onceonly gives every transaction its own.", "Remove it."
            )
        self._check_sasl()
        self._check_encryption()
        self._check_certificates()

    def _check_sasl(self) -> None:
        if not self.protocol.startswith("SASL_"):
            if stray := self._find_setting("sasl."):
                raise self.setting_error(
                    f"'{stray}' is set, and 'security.protocol' is {self.protocol}: nothing would be authenticated.",
                    "Set 'security.protocol' to SASL_SSL, or remove what starts with 'sasl.'.",
                )
            return
        mechanism = self.settings.get("sasl.mechanism", "")
        if mechanism not in NEEDS:
            raise self.setting_error(f"'sasl.mechanism' is {mechanism or None!r}.", f"Use one of {', '.join(NEEDS)}.")
        self._need(NEEDS[mechanism], f"'sasl.mechanism' {mechanism} needs it")
        if mechanism == "OAUTHBEARER" and self.settings["sasl.oauthbearer.method"].lower() != "oidc":
            raise self.setting_error(
                "'sasl.oauthbearer.method' is not oidc.", "Use oidc: tokens come from an endpoint."
            )

    def _check_encryption(self) -> None:
        if self.protocol.endswith("SSL"):
            return
        if stray := self._find_setting("ssl.", "enable.ssl."):
            raise self.setting_error(
                f"'{stray}' is set, and 'security.protocol' is {self.protocol}: nothing would be encrypted.",
                "Set 'security.protocol' to SSL or SASL_SSL, or remove what starts with 'ssl.'.",
            )

    def _find_setting(self, *prefixes: str) -> str | None:
        """Find the first setting that begins with one of these; None if there is none."""
        for key in self.settings:
            if key.startswith(prefixes):
                return key
        return None

    def _check_certificates(self) -> None:
        for kind in ("location", "pem"):
            pair = (f"ssl.certificate.{kind}", f"ssl.key.{kind}")
            if any(key in self.settings for key in pair):
                self._need(pair, "a client certificate and its key go together")

    def _need(self, keys: Iterable[str], why: str) -> None:
        for key in keys:
            if not self.settings.get(key):
                raise self.setting_error(f"'{key}' is missing; {why}.", "Add it to the connection's extra.")


def _text(key: str, value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return _mask(key, text)


def _mask(key: str, text: str) -> str:
    """Return the value of a setting, as a `Secret` if it is one."""
    if SECRET_PROPERTY.search(key):
        return Secret(text)
    return text
