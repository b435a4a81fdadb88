"""Certificates and keys of a connection: files, or PEM text in the connection itself."""

from __future__ import annotations

import re
from pathlib import Path

from onceonly.kafka.connection import KafkaConnection, Secret

SETTINGS = (
    *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem"),
    *("ssl.key.location", "ssl.key.pem", "ssl.key.password"),
)


CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def authorities(connection: KafkaConnection) -> str | None:
    """Return the CA certificates, or None for the client's default ones."""
    return _read(connection, "ssl.ca")


def certificate(connection: KafkaConnection) -> tuple[str, Secret] | None:
    """Return the client's certificate chain and private key; None if it has not both."""
    chain, key = _read(connection, "ssl.certificate"), _read(connection, "ssl.key")
    if not chain or not key:
        return None
    return "\n".join(CERTIFICATE.findall(chain)) + "\n", Secret(key)  # one file may hold both, and the key is secret


def _read(connection: KafkaConnection, kind: str) -> str | None:
    """Return PEM text; if text and file are given, the text is used. None if neither is."""
    if text := connection.settings.get(f"{kind}.pem"):
        return text
    location = connection.settings.get(f"{kind}.location")
    if not location or (kind == "ssl.ca" and location == "probe"):
        return None
    try:
        text = Path(location).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise connection.invalid(
            f"'{kind}.location' {location} cannot be read: {reason}.", "Name a PEM file that is readable here."
        ) from error
    if "-----BEGIN " not in text:
        raise connection.invalid(
            f"'{kind}.location' {location} contains no PEM.", "Convert it: openssl x509, openssl rsa."
        )
    return text
