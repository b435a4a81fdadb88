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
    """Options of a Java client. Certificates are read here, so that Spark's machines need no files.

    Raises:
        InvalidPipeline: a setting that the Java client does not have, or a file that cannot be used.
    """
    connection.refuse_others(CLIENT, TRANSLATED)
    found = {"bootstrap.servers": connection.bootstrap, "security.protocol": connection.protocol}
    if lookup := connection.settings.get("client.dns.lookup"):
        found["client.dns.lookup"] = lookup
    if connection.protocol.endswith("SSL"):
        found |= _tls(connection)
    if connection.mechanism:
        found |= _sasl(connection, connection.mechanism)
    return found


def _sasl(connection: KafkaConnection, mechanism: str) -> dict[str, str]:
    found = {"sasl.mechanism": mechanism}
    if mechanism != "OAUTHBEARER":
        user = {key: connection.settings[f"sasl.{key}"] for key in ("username", "password")}
        return {**found, "sasl.jaas.config": jaas(MODULES[mechanism], user)}
    return {
        **found,
        "sasl.jaas.config": jaas(MODULES[mechanism], _oauth(connection.settings)),
        "sasl.login.callback.handler.class": f"{SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": connection.settings["sasl.oauthbearer.token.endpoint.url"],
    }


def _oauth(settings: Mapping[str, str]) -> dict[str, str]:
    names = {"clientId": "client.id", "clientSecret": "client.secret", "scope": "scope"}
    found = {name: settings.get(f"sasl.oauthbearer.{key}", "") for name, key in names.items()}
    extensions = settings.get("sasl.oauthbearer.extensions", "")
    pairs = (pair.partition("=") for pair in extensions.split(",") if pair)
    found |= {f"extension_{key.strip()}": value for key, _, value in pairs}
    return {name: value for name, value in found.items() if value}


def jaas(module: str, values: Mapping[str, str]) -> Secret:
    """One JAAS entry. Kafka reads it with a StreamTokenizer, whose strings have C escapes.

    >>> str(jaas("M", {"password": 'a"b'}))
    'M required password="a\\\\"b";'
    """
    pairs = " ".join(f'{name}="{_escaped(value)}"' for name, value in values.items())
    return Secret(f"{module} required {pairs};")


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")


def _tls(connection: KafkaConnection) -> dict[str, str]:
    settings = connection.settings
    if settings.get("enable.ssl.certificate.verification") == "false":
        raise connection.invalid(
            f"'enable.ssl.certificate.verification' is off, and {CLIENT} always verifies.",
            "Set the brokers' certificate authority instead: 'ssl.ca.location'.",
        )
    found: dict[str, str] = {}
    if (algorithm := settings.get("ssl.endpoint.identification.algorithm")) is not None:
        found["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    if authorities := pem.authorities(connection):
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authorities}
    return found | _keystore(connection)


def _keystore(connection: KafkaConnection) -> dict[str, str]:
    settings = connection.settings
    if location := settings.get("ssl.keystore.location"):
        password = Secret(settings.get("ssl.keystore.password", ""))
        return {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": location,
            "ssl.keystore.password": password,
            "ssl.key.password": password,
        }
    if (pair := pem.certificate(connection)) is None:
        return {}
    key = pair[1] if PLAIN_KEY in pair[1] else _plain_key(connection, pair[1])
    return {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": pair[0], "ssl.keystore.key": key}


def _plain_key(connection: KafkaConnection, pem_text: str) -> Secret:
    """The key as unencrypted PKCS#8: on Java 17 the client reads neither OpenSSL 3's encryption (PBES2) nor PKCS#1.

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
