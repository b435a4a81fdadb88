"""One set of settings for three clients: what is translated, what is refused by name, and what is never shown."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from codes import raises

from onceonly.airflow import connections as in_airflow
from onceonly.errors import InvalidPipeline
from onceonly.kafka import airflow_connections
from onceonly.kafka.client_settings import JAVA_CLIENT, KAFKA_PYTHON_CLIENT, java_options, kafka_python_arguments
from onceonly.kafka.connection import KafkaConnection
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.requirements import list_connection_ids
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime.live_services import LiveServices
from onceonly.settings import Settings
from onceonly.spark.conf import REDACTION

PASSWORD = 'pass "word\\ 2013;'
SASL: dict[str, Any] = {
    "bootstrap.servers": "one:9093, two:9093",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "flights",
    "sasl.password": PASSWORD,
}
OAUTH: dict[str, Any] = {
    "bootstrap.servers": "one:9093",
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "OIDC",
    "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": "client-secret",
    "sasl.oauthbearer.token.endpoint.url": "https://issuer/token",
    "sasl.oauthbearer.scope": "kafka",
    "sasl.oauthbearer.extensions": "cluster=c1,pool=p1",
}


def parsed(*without: str, **settings: Any) -> KafkaConnection:
    """SASL with these settings on top (`_` for `.`), less those named."""
    named = {key if key.endswith("_cb") else key.replace("_", "."): value for key, value in settings.items()}
    return KafkaConnection.parse({k: v for k, v in {**SASL, **named}.items() if k not in without}, "kafka_default")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A certificate that is its own authority, with its key: plain, encrypted, and in the old form."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(command: str) -> None:
        subprocess.run(["openssl", *command.split()], check=True, capture_output=True, cwd=folder)

    openssl("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=me -keyout plain.key -out me.pem")
    openssl("pkcs8 -topk8 -in plain.key -out locked.key -passout pass:key-password")
    openssl("rsa -in plain.key -traditional -out old.key")
    return {path.name: str(path) for path in folder.iterdir()}


# --- three clients


def test_bare_addresses() -> None:
    bare = KafkaConnection.plaintext("one:9092,two:9092")
    assert bare.librdkafka() == {"bootstrap.servers": "one:9092,two:9092", "security.protocol": "PLAINTEXT"}
    assert java_options(bare) == bare.librdkafka()
    expected = {"bootstrap_servers": ["one:9092", "two:9092"], "security_protocol": "PLAINTEXT"}
    assert kafka_python_arguments(bare) == expected
    assert bare.describe() == "one:9092,two:9092"


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", "plain.Plain"), ("SCRAM-SHA-256", "scram.Scram"), ("SCRAM-SHA-512", "scram.Scram")],
)
def test_user_and_password(mechanism: str, module: str) -> None:
    connection = parsed(sasl_mechanism=mechanism)
    assert connection.librdkafka() == {**SASL, "sasl.mechanism": mechanism}
    assert java_options(connection) == {
        "bootstrap.servers": "one:9093, two:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"org.apache.kafka.common.security.{module}LoginModule required "
        'username="flights" password="pass \\"word\\\\ 2013;";',
    }
    arguments = kafka_python_arguments(connection)
    assert isinstance(arguments.pop("ssl_context"), ssl.SSLContext)
    assert arguments == {
        "bootstrap_servers": ["one:9093", "two:9093"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "flights",
        "sasl_plain_password": PASSWORD,
    }


def test_tokens() -> None:
    connection = KafkaConnection.parse(OAUTH)
    assert connection.librdkafka() == OAUTH
    security = "org.apache.kafka.common.security.oauthbearer"
    assert java_options(connection) == {
        "bootstrap.servers": "one:9093",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f'{security}.OAuthBearerLoginModule required clientId="me" clientSecret="client-secret" '
        'scope="kafka" extension_cluster="c1" extension_pool="p1";',
        "sasl.login.callback.handler.class": f"{security}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": "https://issuer/token",
    }
    provider = kafka_python_arguments(connection)["sasl_oauth_token_provider"]
    assert provider.extensions() == {"cluster": "c1", "pool": "p1"}


@pytest.mark.parametrize("key", ["plain.key", "locked.key"])
@pytest.mark.parametrize("inline", [False, True])
def test_certificates_go_to_java_as_text(tls: dict[str, str], key: str, inline: bool) -> None:
    files = {"ca": tls["me.pem"], "certificate": tls["me.pem"], "key": tls[key]}
    text = {f"ssl.{kind}.pem": Path(path).read_text() for kind, path in files.items()}
    given = text if inline else {f"ssl.{kind}.location": path for kind, path in files.items()}
    if key == "locked.key":
        given["ssl.key.password"] = "key-password"
    connection = KafkaConnection.parse({"bootstrap.servers": "one:9093", "security.protocol": "ssl", **given})
    options = java_options(connection)
    assert options.pop("ssl.keystore.key") == Path(tls["plain.key"]).read_text()
    assert options == {
        "bootstrap.servers": "one:9093",
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": text["ssl.ca.pem"],
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": text["ssl.certificate.pem"],
    }
    context = kafka_python_arguments(connection)["ssl_context"]
    assert [dict(part[0] for part in ca["subject"]) for ca in context.get_ca_certs()] == [{"commonName": "me"}]
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)


def test_host_names_and_verification() -> None:
    unnamed = parsed(ssl_endpoint_identification_algorithm="none")
    assert java_options(unnamed)["ssl.endpoint.identification.algorithm"] == ""
    assert kafka_python_arguments(unnamed)["ssl_context"].check_hostname is False
    trusting = parsed(enable_ssl_certificate_verification=False)
    assert trusting.librdkafka()["enable.ssl.certificate.verification"] == "false"
    assert kafka_python_arguments(trusting)["ssl_context"].verify_mode is ssl.CERT_NONE
    with raises(InvalidPipeline, "kafka-connection-invalid", r"'enable\.ssl\.certificate\.verification'"):
        java_options(trusting)


def test_a_pkcs12_store_is_for_two_clients() -> None:
    stored = parsed(ssl_keystore_location="me.p12", ssl_keystore_password="store-password")
    assert {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": "me.p12"}.items() <= java_options(stored).items()
    with raises(InvalidPipeline, "kafka-connection-invalid", r"'ssl\.keystore\.location'.* kafka-python"):
        kafka_python_arguments(stored)


def test_tuning_is_for_librdkafka_alone() -> None:
    tuned = parsed(linger_ms=5, group_id="g", socket_keepalive_enable=True)
    assert {"linger.ms": "5", "group.id": "g", "socket.keepalive.enable": "true"}.items() <= tuned.librdkafka().items()
    assert java_options(tuned) == java_options(parsed())
    assert set(kafka_python_arguments(tuned)) == set(kafka_python_arguments(parsed()))


def test_aliases_and_case() -> None:
    written = {"metadata.broker.list": "one:1", "security.protocol": "sasl_ssl", "sasl.mechanisms": "plain"}
    connection = KafkaConnection.parse({**written, "sasl.username": "u", "sasl.password": "p", "client.id": None})
    assert (connection.bootstrap, connection.protocol, connection.mechanism) == ("one:1", "SASL_SSL", "PLAIN")
    assert "client.id" not in connection.librdkafka()


# --- what is refused


@pytest.mark.parametrize(
    ("without", "settings", "named"),
    [
        (["bootstrap.servers"], {}, r"bootstrap\.servers"),
        ([], {"security_protocol": "TLS"}, r"security\.protocol"),
        (["security.protocol"], {}, r"'sasl\.\w+'.* PLAINTEXT"),
        (["sasl.mechanism"], {}, r"sasl\.mechanism"),
        ([], {"sasl_mechanism": "GSSAPI"}, r"'GSSAPI'(.|\n)*OAUTHBEARER"),
        (["sasl.password"], {}, r"sasl\.password'.* SCRAM-SHA-512"),
        ([], {"sasl_password": ""}, r"sasl\.password"),
        ([], {"sasl_mechanism": "OAUTHBEARER"}, r"sasl\.oauthbearer\.method"),
        ([], {"error_cb": "module.function"}, "'error_cb'"),
        ([], {"transactional_id": "mine"}, r"transactional\.id"),
        ([], {"ssl_certificate_location": "/x.pem"}, r"ssl\.key\.location"),
    ],
)
def test_what_cannot_work_anywhere_is_refused_at_once(without: list[str], settings: dict[str, Any], named: str) -> None:
    with raises(InvalidPipeline, "kafka-connection-invalid", named) as caught:
        parsed(*without, **settings)
    assert "'kafka_default'" in caught.value.what
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("translate", [java_options, kafka_python_arguments])
@pytest.mark.parametrize("key", ["sasl.pasword", "ssl.curves.list", "https.ca.location", "security.providers"])
def test_a_security_setting_without_translation_is_named(translate: Any, key: str) -> None:
    connection = KafkaConnection.parse({**SASL, key: "x"}, "kafka_default")
    named = {java_options: JAVA_CLIENT, kafka_python_arguments: KAFKA_PYTHON_CLIENT}[translate]
    with raises(InvalidPipeline, "kafka-connection-invalid", f"'{re.escape(key)}'.* {named}"):
        translate(connection)


def test_an_old_key_is_converted_for_java_or_refused_with_the_way_to_convert_it(
    tls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = parsed(ssl_certificate_location=tls["me.pem"], ssl_key_location=tls["old.key"])
    assert java_options(old)["ssl.keystore.key"] == Path(tls["plain.key"]).read_text()
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    with raises(InvalidPipeline, "kafka-connection-invalid", "openssl pkcs8"):
        java_options(old)


@pytest.mark.parametrize("translate", [java_options, kafka_python_arguments])
def test_a_file_that_is_not_there_is_named(translate: Any, tmp_path: Path) -> None:
    with raises(InvalidPipeline, "kafka-connection-invalid", r"ssl\.ca\.location' .*missing\.pem"):
        translate(parsed(ssl_ca_location=f"{tmp_path}/missing.pem"))


def test_a_wrong_key_password_is_refused_without_a_prompt(tls: dict[str, str]) -> None:
    for password in ({}, {"ssl_key_password": "wrong-password"}):
        locked = parsed(ssl_certificate_location=tls["me.pem"], ssl_key_location=tls["locked.key"], **password)
        for translate in (java_options, kafka_python_arguments):
            with raises(InvalidPipeline, "kafka-connection-invalid", r"ssl\.key\.password") as caught:
                translate(locked)
            assert "wrong-password" not in str(caught.value)


# --- what is never shown


@pytest.mark.parametrize("settings", [SASL, OAUTH], ids=["password", "token"])
def test_no_repr_shows_a_secret(settings: dict[str, Any]) -> None:
    connection = KafkaConnection.parse(settings, "kafka_default")
    shown = f"{connection!r} {connection} {connection.settings} {connection.librdkafka()} {java_options(connection)}"
    shown += str(kafka_python_arguments(connection))
    for secret in ("word", "client-secret"):
        assert secret not in shown.replace("password", "")
    assert repr(connection).startswith(f"<KafkaConnection {connection.bootstrap} ({connection.protocol}")


def test_scrub() -> None:
    assert parsed().scrub(f"refused: {PASSWORD}!") == "refused: ***!"


@pytest.mark.parametrize(
    "shown",
    [
        'key: "kafka.sasl.jaas.config"\n  value: "x.PlainLoginModule required user=\\"u\\" password=\\"SECRET;\\";"',
        'Map(kafka.sasl.jaas.config -> x.PlainLoginModule required username="u" password="SECRET";, a -> b)',
        'key: "kafka.ssl.key.password"\n  value: "SECRET"',
        "kafka.ssl.key.password -> SECRET, a -> b",
        "OPTIONS (kafka.ssl.keystore.password = 'SECRET')",
        'value: "-----BEGIN ENCRYPTED PRIVATE KEY-----\\nSECRET+/=\\n-----END ENCRYPTED PRIVATE KEY-----"',
        "-----BEGIN PRIVATE KEY-----\nSECRET\n",
    ],
)
def test_spark_redacts_options_in_a_plan(shown: str) -> None:
    redacted = re.sub(REDACTION["spark.sql.redaction.string.regex"], "(redacted)", f"before\n{shown}\nafter")
    assert "SECRET" not in redacted
    assert redacted.startswith("before\n")


# --- where connections come from


def written(extra: Any) -> list[str]:
    """The forms in which Airflow takes a connection from the environment."""
    query = "&".join(f"{quote(key, safe='')}={quote(str(value), safe='')}" for key, value in extra.items())
    return [
        json.dumps({"conn_type": "kafka", "extra": extra}),
        json.dumps({"conn_type": "kafka", "extra": json.dumps(extra)}),
        f"kafka://?__extra__={quote(json.dumps(extra), safe='')}",
        f"kafka://@:1/?{query}",
    ]


@pytest.mark.parametrize("form", range(4))
def test_the_environment_is_read_as_airflow_reads_it(form: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = written(SASL)[form]
    assert airflow_connections.read_variable("Kafka_default", {"AIRFLOW_CONN_KAFKA_DEFAULT": text}) == SASL
    from airflow.sdk.definitions.connection import Connection

    connection: Any = Connection.from_json(text, "c") if text.startswith("{") else Connection(conn_id="c", uri=text)
    assert json.loads(connection.extra) == SASL


def test_what_is_handed_over_is_what_is_read() -> None:
    variables = airflow_connections.write_variable("kafka_default", SASL)
    assert airflow_connections.read_variable("kafka_default", variables) == SASL


@pytest.mark.parametrize("text", ["", "{", '{"extra": [1]}', '{"extra": "{secret"}', "kafka://?__extra__={secret"])
def test_a_connection_that_is_not_there_or_not_readable(text: str) -> None:
    code = "connection-unreadable" if text else "connection-missing"
    with raises(InvalidPipeline, code, r"'k8'(.|\n)*AIRFLOW_CONN_K8") as caught:
        airflow_connections.read_variable("k8", {"AIRFLOW_CONN_K8": text})
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None or "secret" not in str(caught.value.__cause__)


def test_inside_a_task_airflow_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", written(SASL)[0])
    assert in_airflow.read_extra("kafka_default") == SASL
    handed_over = airflow_connections.write_variables({"kafka_default"}, in_airflow.read_extra)
    assert handed_over == airflow_connections.write_variable("kafka_default", SASL)


# --- how a pipeline names one


def pipeline(**source: Any) -> Pipeline:
    return Pipeline(
        name="flights",
        source=KafkaSource("flights", **source),
        transform="jobs.flights:clean",
        sinks=[DeltaSink("clean", path="lake/clean")],
    )


def test_a_definition_holds_the_name_only() -> None:
    named = pipeline(connection="kafka_default")
    assert named.to_json()["source"]["connection"] == "kafka_default"
    assert Pipeline.from_json(json.loads(json.dumps(named.to_json()))) == named
    assert (list_connection_ids(named), list_connection_ids(pipeline())) == ({"kafka_default"}, set())


@pytest.mark.parametrize(
    "source", [{"connection": "a", "bootstrap": "b:1"}, {"connection": ""}, {"connection": "kafka://u:secret@host"}]
)
def test_a_source_names_one_connection_or_addresses(source: dict[str, Any]) -> None:
    code = "options-conflict" if "bootstrap" in source else "option-invalid"
    with raises(InvalidPipeline, code, "connection") as caught:
        pipeline(**source)
    assert "secret" not in str(caught.value)


def test_live_parts_look_the_name_up(tmp_path: Path) -> None:
    settings = Settings.from_env({"ONCEONLY_HOME": str(tmp_path), "ONCEONLY_KAFKA_BOOTSTRAP": "bare:9092"})
    parts = LiveServices(settings, lambda conn_id: {"kafka_default": SASL}[conn_id])
    assert parts.kafka("kafka_default", None) == parsed()
    assert parts.kafka(None, None).describe() == "bare:9092"
    assert parts.kafka(None, "mine:1").describe() == "mine:1"
    with raises(InvalidPipeline, "connection-missing", "'k9'"):
        LiveServices(settings).kafka("k9", None)


def test_without_a_client_a_connection_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with raises(InvalidPipeline, "package-missing", r"confluent_kafka(.|\n)*pip install 'onceonly\[kafka\]'"):
        KafkaConnection.plaintext("b:9092")
