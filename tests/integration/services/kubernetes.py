"""A real Kubernetes API for tests: kube-apiserver on etcd, with the controllers of accounts and of what pods own.

They are there where `tools/build_kubernetes.sh` was run. Pods are run by `integration.services.kubelet`, as processes.
"""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.services.group import Group
from integration.services.store_server import installed

from onceonly.dev.services import machine
from onceonly.dev.services.service import Service

BINARIES = {name: installed(name, "go/bin") for name in ("etcd", "kube-apiserver", "kube-controller-manager")}
MISSING = "the API server of Kubernetes is not built: tools/build_kubernetes.sh"
ADMIN = "the-token-of-an-administrator"  # of a server that only this test run knows
CONTROLLERS = "serviceaccount-controller,root-ca-certificate-publisher-controller,garbage-collector-controller"


class Etcd(Service):
    name = "etcd"
    port_variable, default_port = "ONCEONLY_TESTS_ETCD_PORT", 0

    def command(self, port: int) -> Sequence[str]:
        clients = f"--listen-client-urls={self.address(port)} --advertise-client-urls={self.address(port)}"
        peers = f"--listen-peer-urls=http://{machine.LOCALHOST}:0 --unsafe-no-fsync"
        return [str(BINARIES["etcd"]), f"--data-dir={self.folder}/data", *clients.split(), *peers.split()]

    def is_ready(self, port: int) -> bool:
        return machine.is_open(port)

    def address(self, port: int) -> str:
        return f"http://{machine.LOCALHOST}:{port}"


class ApiServer(Service):
    """It makes its own certificate, which is its own authority, too."""

    name = "kube-apiserver"
    port_variable, default_port = "ONCEONLY_TESTS_KUBE_PORT", 0

    def __init__(self, etcd: Etcd) -> None:
        super().__init__(etcd.home, port=0)
        self._etcd = etcd

    def command(self, port: int) -> Sequence[str]:
        known = self._etcd.daemon.running()
        assert known
        (self.folder / "tokens.csv").write_text(f"{ADMIN},admin,admin,system:masters\n")
        if not self.key.exists():
            self.key.write_bytes(_new_key())
        return [
            str(BINARIES["kube-apiserver"]),
            f"--etcd-servers={self._etcd.address(known.port)}",
            f"--bind-address={machine.LOCALHOST}",
            f"--advertise-address={machine.LOCALHOST}",
            f"--secure-port={port}",
            f"--cert-dir={self.folder}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.key}",
            f"--service-account-signing-key-file={self.key}",
            "--kubelet-preferred-address-types=InternalIP",
            "--endpoint-reconciler-type=none",
        ]

    @property
    def key(self) -> Path:
        """Signs the tokens of service accounts."""
        return self.folder / "accounts.key"

    @property
    def authority(self) -> Path:
        return self.folder / "apiserver.crt"

    def is_ready(self, port: int) -> bool:
        try:
            return ask(self.address(port), self.authority, "GET", "/readyz", raw=True) == "ok"
        except (AssertionError, OSError):
            return False

    def address(self, port: int) -> str:
        return f"https://{machine.LOCALHOST}:{port}"


class Controllers(Service):
    name = "kube-controller-manager"
    port_variable, default_port = "ONCEONLY_TESTS_CONTROLLERS_PORT", 0

    def __init__(self, server: ApiServer) -> None:
        super().__init__(server.home, port=0)
        self._server = server

    def command(self, port: int) -> Sequence[str]:
        known = self._server.daemon.running()
        assert known
        config = self.folder / "kubeconfig"
        config.write_text(json.dumps(kubeconfig(self._server.address(known.port), self._server.authority, ADMIN)))
        return [
            str(BINARIES["kube-controller-manager"]),
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            f"--bind-address={machine.LOCALHOST}",
            f"--secure-port={port}",
            f"--cert-dir={self.folder}",
            f"--controllers={CONTROLLERS}",
            f"--root-ca-file={self._server.authority}",
            "--leader-elect=false",
        ]

    def is_ready(self, port: int) -> bool:
        return machine.is_open(port)

    def address(self, port: int) -> str:
        return f"https://{machine.LOCALHOST}:{port}"


@dataclass(frozen=True)
class Kubernetes(Group):
    """Where it is, and how an administrator asks it."""

    etcd: Etcd
    server: ApiServer
    controllers: Controllers

    @property
    def address(self) -> str:
        last = self.server.daemon.last()
        assert last
        return self.server.address(last.port)

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, **more: Any) -> Any:
        return ask(self.address, self.server.authority, method, path, body, **more)

    @property
    def services(self) -> Sequence[Service]:
        return (self.etcd, self.server, self.controllers)

    def namespace(self, name: str, rules: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """A namespace, with a service account of each name, and these rules for it."""
        self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{name}"
        for account, allowed in rules.items():
            self.ask("POST", f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": account}})
            self.ask("POST", f"{roles}/roles", {"metadata": {"name": account}, "rules": list(allowed)})
            whom = [{"kind": "ServiceAccount", "name": account, "namespace": name}]
            role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account}
            binding = {"metadata": {"name": account}, "subjects": whom, "roleRef": role}
            self.ask("POST", f"{roles}/rolebindings", binding)

    def secret(self, namespace: str, name: str, values: Mapping[str, str]) -> None:
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        self.ask("POST", f"/api/v1/namespaces/{namespace}/secrets", {"metadata": {"name": name}, "data": data})

    def token(self, namespace: str, account: str) -> str:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return str(self.ask("POST", path, {"spec": {"expirationSeconds": 3600}})["status"]["token"])

    def login(self, folder: Path, namespace: str, account: str) -> Path:
        """A file for KUBECONFIG, of that account."""
        file = folder / f"kubeconfig-{account}"
        found = kubeconfig(self.address, self.server.authority, self.token(namespace, account))
        file.write_text(json.dumps(found))
        return file


def kubernetes(home: Path) -> Kubernetes:
    etcd = Etcd(home, port=0)
    server = ApiServer(etcd)
    return Kubernetes(etcd, server, Controllers(server))


def kubeconfig(server: str, authority: Path, token: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": "u", "user": {"token": token}}],
    }


def ask(
    server: str,
    authority: Path,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    kind: str = "application/json",
    raw: bool = False,
    missing: bool = False,
) -> Any:
    """What it answers an administrator; with `missing`, nothing where there is no such thing."""
    headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": kind}
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(f"{server}{path}", data, headers, method=method)
    try:
        context = ssl.create_default_context(cafile=str(authority))
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            said = answer.read().decode()
    except urllib.error.HTTPError as error:
        if missing and error.code == 404:
            return None
        raise AssertionError(f"{method} {path}: {error.read().decode()}") from error
    return said if raw else json.loads(said)


def _new_key() -> bytes:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, plain)
