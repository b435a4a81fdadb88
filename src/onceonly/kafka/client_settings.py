"""A connection in the settings of the clients other than librdkafka: Java's of Spark, and kafka-python.

The Java client is that of kafka-clients 3.9, in Spark's connector. It gets certificates as PEM text, not as paths:
Spark's driver, executors and Connect server need no files. kafka-python gets them in an `ssl_context`.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from onceonly.kafka.connection import KafkaConnection, Secret

PEM_SETTINGS = (
    *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem"),
    *("ssl.key.location", "ssl.key.pem", "ssl.key.password"),
)


CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
JAVA_CLIENT = "Spark's Java client"
SECURITY = "org.apache.kafka.common.security"
LOGIN_MODULES = {
    "PLAIN": f"{SECURITY}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{SECURITY}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{SECURITY}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{SECURITY}.oauthbearer.OAuthBearerLoginModule",
}
AUTHENTICATION_SETTINGS = (
    *("security.protocol", "sasl.mechanism", "sasl.username", "sasl.password", "ssl.endpoint.identification.algorithm"),
    *("sasl.oauthbearer.method", "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret"),
    *("sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.scope", "sasl.oauthbearer.extensions"),
)
JAVA_TRANSLATED = (
    *(*AUTHENTICATION_SETTINGS, "ssl.keystore.location", "ssl.keystore.password"),
    *("enable.ssl.certificate.verification", *PEM_SETTINGS),
)
UNENCRYPTED_KEY = "-----BEGIN PRIVATE KEY-----"  # PKCS#8
KAFKA_PYTHON_CLIENT = "kafka-python"
KAFKA_PYTHON_TRANSLATED = (
    *(*AUTHENTICATION_SETTINGS, "ssl.cipher.suites", "ssl.crl.location"),
    *("enable.ssl.certificate.verification", *PEM_SETTINGS),
)


def java_options(connection: KafkaConnection) -> dict[str, str]:
    """Return options of a Java client. Certificates are read here, so that Spark's machines need no files.

    Raises:
        InvalidPipeline: a setting that the Java client does not have, or a file that cannot be used.
    """
    connection.refuse_others(JAVA_CLIENT, JAVA_TRANSLATED)
    options = {"bootstrap.servers": connection.bootstrap, "security.protocol": connection.protocol}
    if lookup := connection.settings.get("client.dns.lookup"):
        options["client.dns.lookup"] = lookup
    if connection.protocol.endswith("SSL"):
        options |= _tls_options(connection)
    if connection.mechanism:
        options |= _sasl_options(connection, connection.mechanism)
    return options


def _sasl_options(connection: KafkaConnection, mechanism: str) -> dict[str, str]:
    if mechanism != "OAUTHBEARER":
        settings = connection.settings
        user = {"username": settings["sasl.username"], "password": settings["sasl.password"]}
        return {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas(LOGIN_MODULES[mechanism], user)}
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": jaas(LOGIN_MODULES[mechanism], _oauth_values(connection.settings)),
        "sasl.login.callback.handler.class": f"{SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": connection.settings["sasl.oauthbearer.token.endpoint.url"],
    }


def _oauth_values(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the JAAS entry for client credentials, without empty ones."""
    names = {"clientId": "client.id", "clientSecret": "client.secret", "scope": "scope"}
    values: dict[str, str] = {}
    for name, key in names.items():
        if value := settings.get(f"sasl.oauthbearer.{key}"):
            values[name] = value
    for pair in settings.get("sasl.oauthbearer.extensions", "").split(","):
        key, _, value = pair.partition("=")
        if value:
            values[f"extension_{key.strip()}"] = value
    return values


def jaas(module: str, values: Mapping[str, str]) -> Secret:
    """Return one JAAS entry. Kafka reads it with a StreamTokenizer, whose strings have C escapes.

    >>> str(jaas("M", {"password": 'a"b'}))
    'M required password="a\\\\"b";'
    """
    pairs = " ".join(f'{name}="{_escape(value)}"' for name, value in values.items())
    return Secret(f"{module} required {pairs};")


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")


def _tls_options(connection: KafkaConnection) -> dict[str, str]:
    settings = connection.settings
    if settings.get("enable.ssl.certificate.verification") == "false":
        raise connection.setting_error(
            f"'enable.ssl.certificate.verification' is off, and {JAVA_CLIENT} always verifies.",
            "Set the brokers' certificate authority instead: 'ssl.ca.location'.",
        )
    tls_options: dict[str, str] = {}
    algorithm = settings.get("ssl.endpoint.identification.algorithm")
    if algorithm is not None:
        tls_options["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    if authorities := read_authorities(connection):
        tls_options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authorities}
    return tls_options | _keystore_options(connection)


def _keystore_options(connection: KafkaConnection) -> dict[str, str]:
    settings = connection.settings
    if location := settings.get("ssl.keystore.location"):
        password = Secret(settings.get("ssl.keystore.password", ""))
        return {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": location,
            "ssl.keystore.password": password,
            "ssl.key.password": password,
        }
    certificate = read_certificate(connection)
    if certificate is None:
        return {}
    chain, key = certificate
    if UNENCRYPTED_KEY not in key:
        key = _plain_key(connection, key)
    return {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}


def _plain_key(connection: KafkaConnection, pem_text: str) -> Secret:
    """Return the key as unencrypted PKCS#8. On Java 17 the client reads neither OpenSSL 3's PBES2 nor PKCS#1.

    The key would be sent together with its password anyway, so nothing is lost.
    """
    try:
        from cryptography.hazmat.primitives import serialization as forms
    except ImportError:
        raise connection.setting_error(
            f"its client key is encrypted or not PKCS#8, which {JAVA_CLIENT} does not read.",
            "pip install cryptography, or convert the key: openssl pkcs8 -topk8 -nocrypt -in KEY -out NEW.",
        ) from None
    password = connection.settings.get("ssl.key.password")
    try:
        key = forms.load_pem_private_key(pem_text.encode(), password.encode() if password else None)
    except (ValueError, TypeError) as error:
        reason = connection.scrub(str(error)).rstrip(".")
        raise connection.setting_error(
            f"its client key cannot be read: {reason}.", "Check 'ssl.key.password'."
        ) from None
    plain = key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())
    return Secret(plain.decode())


# ---- kafka-python


def kafka_python_arguments(connection: KafkaConnection) -> dict[str, Any]:
    """Return keyword arguments of a kafka-python client. Certificates are read here, into an `ssl_context`.

    Raises:
        InvalidPipeline: a setting that kafka-python does not have, or a file that cannot be used.
    """
    connection.refuse_others(KAFKA_PYTHON_CLIENT, KAFKA_PYTHON_TRANSLATED)
    servers = [server.strip() for server in connection.bootstrap.split(",")]
    client_arguments: dict[str, Any] = {"bootstrap_servers": servers, "security_protocol": connection.protocol}
    if lookup := connection.settings.get("client.dns.lookup"):
        client_arguments["client_dns_lookup"] = lookup
    if connection.protocol.endswith("SSL"):
        client_arguments["ssl_context"] = _ssl_context(connection)
    if connection.mechanism:
        client_arguments |= _sasl_arguments(connection)
    return client_arguments


def _sasl_arguments(connection: KafkaConnection) -> dict[str, Any]:
    sasl_arguments: dict[str, Any] = {"sasl_mechanism": connection.mechanism}
    if connection.mechanism == "OAUTHBEARER":
        from onceonly.kafka.oidc import token_provider

        return {**sasl_arguments, "sasl_oauth_token_provider": token_provider(connection)}
    user, password = connection.settings["sasl.username"], connection.settings["sasl.password"]
    return {**sasl_arguments, "sasl_plain_username": user, "sasl_plain_password": Secret(password)}


def _ssl_context(connection: KafkaConnection) -> ssl.SSLContext:
    """Return the context that kafka-python would build from files, made from files or PEM text."""
    settings = connection.settings
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = settings.get("ssl.endpoint.identification.algorithm", "https") != "none"
    if settings.get("enable.ssl.certificate.verification") == "false":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    authorities = read_authorities(connection)
    try:
        if authorities:
            context.load_verify_locations(cadata=authorities)
        else:
            context.load_default_certs()
        _restrict(context, connection)
        _load_client_certificate(context, connection)
    except (ssl.SSLError, OSError) as error:
        raise connection.setting_error(
            f"its certificates cannot be used: {connection.scrub(str(error))}.",
            "Check the settings that start with 'ssl.': files, PEM text, 'ssl.key.password'.",
        ) from error
    return context


def _restrict(context: ssl.SSLContext, connection: KafkaConnection) -> None:
    """Allow only the connection's ciphers, and no certificate that it lists as revoked."""
    if ciphers := connection.settings.get("ssl.cipher.suites"):
        context.set_ciphers(ciphers)
    if revocation_list := connection.settings.get("ssl.crl.location"):
        context.load_verify_locations(revocation_list)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _load_client_certificate(context: ssl.SSLContext, connection: KafkaConnection) -> None:
    """Load the client's own certificate. Python loads it from a file only, so a temporary one is written."""
    if pair := read_certificate(connection):
        with NamedTemporaryFile("w", suffix=".pem") as file:  # readable by this user alone
            file.write("\n".join(pair))
            file.flush()
            context.load_cert_chain(file.name, password=connection.settings.get("ssl.key.password", ""))


# ---- certificates


def read_authorities(connection: KafkaConnection) -> str | None:
    """Return the CA certificates, or None for the client's default ones."""
    return _read_pem(connection, "ssl.ca")


def read_certificate(connection: KafkaConnection) -> tuple[str, Secret] | None:
    """Return the client's certificate chain and private key; None if it has not both."""
    chain, key = _read_pem(connection, "ssl.certificate"), _read_pem(connection, "ssl.key")
    if not chain or not key:
        return None
    return "\n".join(CERTIFICATE.findall(chain)) + "\n", Secret(key)  # one file may hold both, and the key is secret


def _read_pem(connection: KafkaConnection, kind: str) -> str | None:
    """Return PEM text; if text and file are given, the text is used. None if neither is."""
    if text := connection.settings.get(f"{kind}.pem"):
        return text
    location = connection.settings.get(f"{kind}.location")
    if not location or (kind == "ssl.ca" and location == "probe"):
        return None
    try:
        text = Path(location).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not a text file"
        if isinstance(error, OSError):
            reason = str(error.strerror)
        raise connection.setting_error(
            f"'{kind}.location' {location} cannot be read: {reason}.", "Name a PEM file that is readable here."
        ) from error
    if "-----BEGIN " not in text:
        raise connection.setting_error(
            f"'{kind}.location' {location} contains no PEM.", "Convert it: openssl x509, openssl rsa."
        )
    return text
