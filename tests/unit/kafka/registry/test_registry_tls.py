"""A schema registry over HTTPS: whom the client trusts, how it shows who it is, and what it never shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from ssl import CERT_REQUIRED, PROTOCOL_TLS_SERVER, SSLContext

import pytest
from codes import raises
from integration.services.secure_broker import KEY_PASSWORD, Authority
from schema_registry import FakeRegistry, serving

from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.kafka.registry.client import Registry, RegistryConnection

pytestmark = pytest.mark.slow  # openssl makes keys
LOGIN = "ann:right-secret"
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "certificates")


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[FakeRegistry]:
    """It asks for a login, and for a certificate of the same authority."""
    context = SSLContext(PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("registry"))
    context.load_verify_locations(authority.ca)
    context.verify_mode = CERT_REQUIRED
    with serving(FakeRegistry(login=LOGIN), context) as running:
        running.register("orders-value", ORDER)
        yield running


@pytest.fixture(scope="module")
def client(authority: Authority) -> dict[str, str]:
    certificate, key = authority.issue("client")
    return {
        "ssl.ca.location": str(authority.ca),
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(authority.lock(key)),
        "ssl.key.password": KEY_PASSWORD,
    }


def asked(server: FakeRegistry, settings: dict[str, str]) -> int | None:
    found = Registry(RegistryConnection.parse({"url": server.url, **settings}, "shop")).find_latest("orders-value")
    return found and found.version


def test_a_login_and_a_certificate_over_tls(server: FakeRegistry, client: dict[str, str]) -> None:
    assert asked(server, {**client, "basic.auth.user.info": LOGIN}) == 1


def test_a_login_that_is_refused_over_tls(server: FakeRegistry, client: dict[str, str]) -> None:
    with raises(InvalidPipeline, "registry-access-denied", "401") as refused:
        asked(server, {**client, "basic.auth.user.info": "ann:wrong-secret"})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("missing", ["ssl.ca.location", "ssl.certificate.location"])
def test_a_server_or_a_client_that_is_not_trusted(
    server: FakeRegistry, client: dict[str, str], missing: str, tmp_path: Path
) -> None:
    """Nothing is asked of a registry that cannot show who it is."""
    kept = {name: value for name, value in client.items() if name != missing}
    if missing == "ssl.certificate.location":
        kept = {"ssl.ca.location": client["ssl.ca.location"]}
    before = len(server.requests)
    with raises(NotCommitted, "registry-unreachable", "certificate|CERTIFICATE|SSL|[Dd]isconnected|closed"):
        asked(server, {**kept, "basic.auth.user.info": LOGIN})
    assert len(server.requests) == before


def test_files_that_are_not_there(server: FakeRegistry, client: dict[str, str]) -> None:
    with raises(InvalidPipeline, "registry-connection-invalid"):
        asked(server, {**client, "ssl.certificate.location": "/nowhere/client.pem"})


def test_a_token(client: dict[str, str]) -> None:
    """Of a kind that needs no other server."""
    cluster = {"bearer.auth.logical.cluster": "lsrc-1", "bearer.auth.identity.pool.id": "pool-1"}
    token = {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": "secret-token", **cluster}
    with serving(FakeRegistry(login="Bearer secret-token")) as running:
        running.register("orders-value", ORDER)
        assert asked(running, token) == 1
        with raises(InvalidPipeline, "registry-access-denied", "401") as refused:
            asked(running, {**token, "bearer.auth.token": "other-secret"})
        assert "other-secret" not in str(refused.value)
