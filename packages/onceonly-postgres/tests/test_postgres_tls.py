"""A server that takes only TLS and passwords."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from codes import raises
from integration.services.postgres import USER
from integration.services.secure_broker import Authority
from own_server import own_server
from plain_client import execute
from publisher import Publisher
from targets import NumberTable, connection_variable, plain_table

from onceonly.errors import NotCommitted
from onceonly.testing.contract import Committer

pytestmark = pytest.mark.integration
PASSWORD = "open-sesame-2013"
RULES = """\
hostssl all loader 127.0.0.1/32 scram-sha-256
hostnossl all airflow 127.0.0.1/32 trust
"""


@dataclass(frozen=True)
class Guarded:
    """The table of a role that has to give a password over TLS.

    Args:
        login: settings of libpq with which that works.
        other_ca: the certificate of an authority that has signed nothing of this server.
    """

    target: NumberTable
    login: dict[str, str]
    other_ca: Path


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.issue("server")
    rules = tmp_path / "pg_hba.conf"
    rules.write_text(RULES)
    with TemporaryDirectory(prefix="onceonly-postgres-") as folder:
        settings = ["ssl=on"]
        for name, path in {"ssl_cert_file": certificate, "ssl_key_file": key, "hba_file": rules}.items():
            settings.append(f"{name}={hand_over(path, folder)}")
        with own_server(folder, monkeypatch, *settings) as server:
            target = plain_table(server.port, "numbers")
            execute(server.port, f"CREATE ROLE loader LOGIN PASSWORD '{PASSWORD}'")
            execute(server.port, "ALTER TABLE numbers OWNER TO loader")
            execute(server.port, "GRANT CREATE ON DATABASE postgres TO loader")
            login = {"user": "loader", "password": PASSWORD, "sslmode": "verify-full", "sslrootcert": str(authority.ca)}
            monkeypatch.setenv(*connection_variable(server.port, **login))
            yield Guarded(target, login, Authority(tmp_path / "another").ca)


def hand_over(path: Path, folder: str) -> Path:
    """Copy a file to where the server can read it, and nobody else."""
    copied = Path(shutil.copy(path, folder))
    copied.chmod(0o600)
    if os.geteuid() == 0:
        shutil.chown(copied, USER)
    return copied


def test_rows_are_published_over_tls(guarded: Guarded, tmp_path: Path) -> None:
    publisher, committer = Publisher(guarded.target, tmp_path), Committer(guarded.target, str(tmp_path))
    guarded.target.sink().check()
    handle = publisher.stage(1, 1, 2, 3)
    assert not committer.commit(committer.rehearse(handle, 1), 1).already
    assert committer.commit(handle, 1).already
    assert guarded.target.published() == [1, 2, 3]


@pytest.mark.parametrize(
    "wrong", [{"password": f"{PASSWORD}-or-not"}, {"sslmode": "disable"}, {"sslrootcert": "another"}], ids=str
)
def test_login_that_the_server_refuses(
    guarded: Guarded, wrong: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sslrootcert" in wrong:
        wrong = {"sslrootcert": str(guarded.other_ca)}
    monkeypatch.setenv(*connection_variable(guarded.target.port, **{**guarded.login, **wrong}))
    publisher = Publisher(guarded.target, tmp_path)
    for call in (guarded.target.sink().check, lambda: publisher.stage(1)):
        with raises(NotCommitted, "postgres-unreachable") as refused:
            call()
        assert PASSWORD not in str(refused.value)
    assert guarded.target.published() == []
