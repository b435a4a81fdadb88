"""Every setting that secures a connection, in every spelling that is taken, means the same to all three clients."""

from __future__ import annotations

import re
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from confluent_kafka import Producer

from onceonly.errors import InvalidPipeline
from onceonly.kafka.client_settings import (
    JAVA_TRANSLATED,
    KAFKA_PYTHON_TRANSLATED,
    java_options,
    kafka_python_arguments,
)
from onceonly.kafka.connection import SPELLINGS, KafkaConnection

pytestmark = pytest.mark.slow

TLS = {"bootstrap.servers": "one:9093", "security.protocol": "SSL"}
SCRAM = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "u",
    "sasl.password": "p1",
}
OIDC = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": "s3cret",
    "sasl.oauthbearer.token.endpoint.url": "https://issuer/token",
}
ANY = object()  # the client is told; what, is another test's
NEVER = None  # the client has nothing for it: refused, by name


def jaas(text: str) -> Callable[[dict[str, Any]], bool]:
    return lambda options: text in options["sasl.jaas.config"]


def option(name: str, value: str) -> Callable[[dict[str, Any]], bool]:
    return lambda options: options[name] == value


def context(of: Callable[[ssl.SSLContext], bool]) -> Callable[[dict[str, Any]], bool]:
    return lambda arguments: of(arguments["ssl_context"])


VERIFIES = context(lambda made: made.verify_mode is ssl.CERT_REQUIRED)
TRUSTS = context(lambda made: made.verify_mode is ssl.CERT_NONE and not made.check_hostname)
NAMES = context(lambda made: made.check_hostname)
NO_NAMES = context(lambda made: not made.check_hostname and made.verify_mode is ssl.CERT_REQUIRED)
KNOWS_ONE = context(lambda made: len(made.get_ca_certs()) == 1)
HAS_A_CRL = context(lambda made: bool(made.verify_flags & ssl.VERIFY_CRL_CHECK_LEAF))
LOCKED = option("ssl.keystore.password", "p")
PROTOCOL, HOSTS, MECHANISM = "security.protocol", "ssl.endpoint.identification.algorithm", "sasl.mechanism"
PEM, STORE = option("ssl.keystore.type", "PEM"), option("ssl.keystore.type", "PKCS12")


def has_tokens(made: Any) -> bool:
    return "sasl_oauth_token_provider" in made


def taken(_: Any) -> bool:
    return True


# setting, as it is written, what it stands beside, and what the clients make of it: librdkafka, Java, kafka-python
TABLE: list[tuple[str, Any, dict[str, str], str, Any, Any]] = [
    *(
        (PROTOCOL, text, {}, "SSL", option(PROTOCOL, "SSL"), option("security_protocol", "SSL"))
        for text in ("SSL", "ssl")
    ),
    *(
        (PROTOCOL, text, SCRAM, "SASL_SSL", option(PROTOCOL, "SASL_SSL"), option("security_protocol", "SASL_SSL"))
        for text in ("SASL_SSL", "sasl_ssl", "Sasl_Ssl")
    ),
    *(
        ("enable.ssl.certificate.verification", text, {}, "true", taken, VERIFIES)
        for text in (True, 1, "true", "True", "TRUE", "t", "1")
    ),
    *(
        ("enable.ssl.certificate.verification", text, {}, "false", NEVER, TRUSTS)
        for text in (False, 0, "false", "False", "f", "0")
    ),
    *(
        (HOSTS, text, {}, "https", option(HOSTS, "https"), NAMES)
        for text in ("https", "HTTPS")
    ),
    *(
        (HOSTS, text, {}, "none", option(HOSTS, ""), NO_NAMES)
        for text in ("none", "NONE", "")
    ),
    ("ssl.ca.location", "me.pem", {}, ANY, option("ssl.truststore.type", "PEM"), KNOWS_ONE),
    ("ssl.ca.pem", "text of me.pem", {}, ANY, option("ssl.truststore.type", "PEM"), KNOWS_ONE),
    *(
        (f"ssl.{what}.{form}", value, {f"ssl.{other}.{form}": beside}, ANY, PEM, taken)
        for what, other, file in (("certificate", "key", "me"), ("key", "certificate", "plain"))
        for form, value, beside in (
            ("location", f"{file}.pem", f"{'plain' if file == 'me' else 'me'}.pem"),
            ("pem", f"text of {file}.pem", f"text of {'plain' if file == 'me' else 'me'}.pem"),
        )
    ),
    (
        "ssl.key.password", "key-password", {"ssl.certificate.location": "me.pem", "ssl.key.location": "locked.pem"},
        ANY, PEM, taken,
    ),
    ("ssl.cipher.suites", "ECDHE-RSA-AES256-GCM-SHA384", {}, ANY, NEVER, taken),
    ("ssl.crl.location", "me.pem", {}, ANY, NEVER, HAS_A_CRL),
    ("ssl.keystore.location", "me.p12", {"ssl.keystore.password": "p"}, ANY, STORE, NEVER),
    ("ssl.keystore.password", "p", {"ssl.keystore.location": "me.p12"}, ANY, LOCKED, NEVER),
    *(
        (MECHANISM, text, SCRAM, name, option(MECHANISM, name), option("sasl_mechanism", name))
        for text in ("PLAIN", "plain", "SCRAM-SHA-256", "scram-sha-256", "SCRAM-SHA-512")
        for name in [text.upper()]
    ),
    ("sasl.username", "ann", SCRAM, "ann", jaas('username="ann"'), option("sasl_plain_username", "ann")),
    ("sasl.password", "p2", SCRAM, "p2", jaas('password="p2"'), option("sasl_plain_password", "p2")),
    *(
        ("sasl.oauthbearer.method", text, OIDC, ANY, jaas("OAuth"), has_tokens)
        for text in ("oidc", "OIDC")
    ),
    ("sasl.oauthbearer.client.id", "you", OIDC, "you", jaas('clientId="you"'), taken),
    ("sasl.oauthbearer.client.secret", "t0p", OIDC, "t0p", jaas('clientSecret="t0p"'), taken),
    (
        "sasl.oauthbearer.token.endpoint.url", "https://b/t", OIDC, "https://b/t",
        option("sasl.oauthbearer.token.endpoint.url", "https://b/t"), taken,
    ),
    ("sasl.oauthbearer.scope", "kafka", OIDC, "kafka", jaas('scope="kafka"'), taken),
    (
        "sasl.oauthbearer.extensions", "a=1", OIDC, "a=1", jaas('extension_a="1"'),
        lambda made: made["sasl_oauth_token_provider"].extensions() == {"a": "1"},
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    for command in (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=me -keyout plain.pem -out me.pem",
        "pkcs8 -topk8 -in plain.pem -out locked.pem -passout pass:key-password",
        "pkcs12 -export -in me.pem -inkey plain.pem -out me.p12 -passout pass:p",
    ):
        subprocess.run(["openssl", *command.split()], check=True, capture_output=True, cwd=made)
    return made


def connection(folder: Path, settings: dict[str, Any]) -> KafkaConnection:
    def found(value: Any) -> Any:
        if isinstance(value, str) and value.endswith((".pem", ".p12")):
            name = value.removeprefix("text of ")
            return str(folder / name) if name == value else (folder / name).read_text()
        return value

    return KafkaConnection.parse({key: found(value) for key, value in {**TLS, **settings}.items()})


def described(row: tuple[Any, ...]) -> str:
    return f"{row[0]}={row[1]!r}"


@pytest.mark.parametrize("row", TABLE, ids=described)
def test_a_setting_means_the_same_to_every_client(row: tuple[Any, ...], folder: Path) -> None:
    key, text, beside, librdkafka, to_java, to_kafka_python = row
    made = connection(folder, {**beside, key: text})
    assert librdkafka is ANY or made.librdkafka()[key] == librdkafka
    Producer({**made.librdkafka(), "log_level": 0})  # it takes what it is given, or raises
    for translate, expected in (
        (java_options, to_java),
        (kafka_python_arguments, to_kafka_python),
    ):
        if expected is NEVER:
            with raises(InvalidPipeline, "kafka-connection-invalid", re.escape(key.rpartition(".")[0])):
                translate(made)
        else:
            assert expected(translate(made))


def test_every_setting_that_has_a_translation_is_in_the_table() -> None:
    assert {row[0] for row in TABLE} == {*JAVA_TRANSLATED, *KAFKA_PYTHON_TRANSLATED}
    assert {(row[0], meaning) for row in TABLE for meaning in [row[3]] if row[0] in SPELLINGS} == {
        (key, meaning) for key, meanings in SPELLINGS.items() for meaning in meanings
    }


@pytest.mark.parametrize(("key", "text"), [(key, text) for key in SPELLINGS for text in ("yes", "off", "2", "tls")])
def test_what_is_not_understood_is_refused(key: str, text: str) -> None:
    with raises(InvalidPipeline, "kafka-connection-invalid", re.escape(key)):
        KafkaConnection.parse({**TLS, key: text})


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT", None])
@pytest.mark.parametrize("key", sorted({row[0] for row in TABLE if "ssl." in row[0]}))
def test_nothing_that_should_encrypt_is_dropped(protocol: str | None, key: str) -> None:
    security = (
        {**SCRAM, "security.protocol": protocol} if protocol == "SASL_PLAINTEXT" else {"security.protocol": protocol}
    )
    with raises(InvalidPipeline, "kafka-connection-invalid", "encrypted"):
        KafkaConnection.parse({**TLS, **security, key: "true"})
