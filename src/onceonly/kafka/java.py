"""A connection as settings of the Java client (kafka-clients 3.9, in Spark's connector).

Certificates are passed as PEM text, not as paths: Spark's driver, executors and Connect server need no files.
"""

from __future__ import annotations

from collections.abc import Mapping

from onceonly.kafka import pem
from onceonly.kafka.connection import KafkaConnection, Secret

CLIENT = "Spark's Java client"
SECURITY = "org.apache.kafka.common.security"
MODULES = {
    "PLAIN": f"{SECURITY}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{SECURITY}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{SECURITY}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{SECURITY}.oauthbearer.OAuthBearerLoginModule",
}
TRANSLATED = (
    *("security.protocol", "sasl.mechanism", "sasl.username", "sasl.password", "ssl.endpoint.identification.algorithm"),
    *(f"sasl.oauthbearer.{key}" for key in ("method", "client.id", "client.secret", "token.endpoint.url")),
    *("sasl.oauthbearer.scope", "sasl.oauthbearer.extensions", "ssl.keystore.location", "ssl.keystore.password"),
    *("enable.ssl.certificate.verification", *pem.SETTINGS),
)
PLAIN_KEY = "-----BEGIN PRIVATE KEY-----"  # PKCS#8


def options(connection: KafkaConnection) -> dict[str, str]:
    """Return options of a Java client. Certificates are read here, so that Spark's machines need no files.

    Raises:
        InvalidPipeline: a setting that the Java client does not have, or a file that cannot be used.
    """
    connection.refuse_others(CLIENT, TRANSLATED)
    java_options = {"bootstrap.servers": connection.bootstrap, "security.protocol": connection.protocol}
    if lookup := connection.settings.get("client.dns.lookup"):
        java_options["client.dns.lookup"] = lookup
    if connection.protocol.endswith("SSL"):
        java_options |= _tls_options(connection)
    if connection.mechanism:
        java_options |= _sasl_options(connection, connection.mechanism)
    return java_options


def _sasl_options(connection: KafkaConnection, mechanism: str) -> dict[str, str]:
    if mechanism != "OAUTHBEARER":
        user = {key: connection.settings[f"sasl.{key}"] for key in ("username", "password")}
        return {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas(MODULES[mechanism], user)}
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": jaas(MODULES[mechanism], _oauth_values(connection.settings)),
        "sasl.login.callback.handler.class": f"{SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": connection.settings["sasl.oauthbearer.token.endpoint.url"],
    }


def _oauth_values(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the JAAS entry for client credentials, without empty ones."""
    names = {"clientId": "client.id", "clientSecret": "client.secret", "scope": "scope"}
    values = {name: settings.get(f"sasl.oauthbearer.{key}", "") for name, key in names.items()}
    for pair in settings.get("sasl.oauthbearer.extensions", "").split(","):
        if pair:
            key, _, value = pair.partition("=")
            values[f"extension_{key.strip()}"] = value
    return {name: value for name, value in values.items() if value}


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
        raise connection.invalid(
            f"'enable.ssl.certificate.verification' is off, and {CLIENT} always verifies.",
            "Set the brokers' certificate authority instead: 'ssl.ca.location'.",
        )
    tls_options: dict[str, str] = {}
    algorithm = settings.get("ssl.endpoint.identification.algorithm")
    if algorithm is not None:
        tls_options["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    if authorities := pem.authorities(connection):
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
    certificate = pem.certificate(connection)
    if certificate is None:
        return {}
    chain, key = certificate
    if PLAIN_KEY not in key:
        key = _plain_key(connection, key)
    return {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}


def _plain_key(connection: KafkaConnection, pem_text: str) -> Secret:
    """Return the key as unencrypted PKCS#8. On Java 17 the client reads neither OpenSSL 3's PBES2 nor PKCS#1.

    The key would be sent together with its password anyway, so nothing is lost.
    """
    try:
        from cryptography.hazmat.primitives import serialization as forms
    except ImportError:
        raise connection.invalid(
            f"its client key is encrypted or not PKCS#8, which {CLIENT} does not read.",
            "pip install cryptography, or convert the key: openssl pkcs8 -topk8 -nocrypt -in KEY -out NEW.",
        ) from None
    password = connection.settings.get("ssl.key.password")
    try:
        key = forms.load_pem_private_key(pem_text.encode(), password.encode() if password else None)
    except (ValueError, TypeError) as error:
        reason = connection.scrub(str(error)).rstrip(".")
        raise connection.invalid(f"its client key cannot be read: {reason}.", "Check 'ssl.key.password'.") from None
    plain = key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())
    return Secret(plain.decode())
