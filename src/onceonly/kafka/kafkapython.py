"""A connection as keyword arguments of kafka-python's `KafkaAdminClient`."""

from __future__ import annotations

import ssl
from tempfile import NamedTemporaryFile
from typing import Any

from onceonly.kafka import pem
from onceonly.kafka.connection import KafkaConnection, Secret

CLIENT = "kafka-python"
TRANSLATED = (
    *("security.protocol", "sasl.mechanism", "sasl.username", "sasl.password", "ssl.endpoint.identification.algorithm"),
    *(f"sasl.oauthbearer.{key}" for key in ("method", "client.id", "client.secret", "token.endpoint.url")),
    *("sasl.oauthbearer.scope", "sasl.oauthbearer.extensions", "ssl.cipher.suites", "ssl.crl.location"),
    *("enable.ssl.certificate.verification", *pem.SETTINGS),
)


def arguments(connection: KafkaConnection) -> dict[str, Any]:
    """Return keyword arguments of a kafka-python client. Certificates are read here, into an `ssl_context`.

    Raises:
        InvalidPipeline: a setting that kafka-python does not have, or a file that cannot be used.
    """
    connection.refuse_others(CLIENT, TRANSLATED)
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
    authorities = pem.authorities(connection)
    try:
        if authorities:
            context.load_verify_locations(cadata=authorities)
        else:
            context.load_default_certs()
        _restrict(context, connection)
        _load_client_certificate(context, connection)
    except (ssl.SSLError, OSError) as error:
        raise connection.invalid(
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
    if pair := pem.certificate(connection):
        with NamedTemporaryFile("w", suffix=".pem") as file:  # readable by this user alone
            file.write("\n".join(pair))
            file.flush()
            context.load_cert_chain(file.name, password=connection.settings.get("ssl.key.password", ""))
