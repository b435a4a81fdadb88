"""How this process may ask a Kubernetes API: by the service account of its pod, or by KUBECONFIG.

Source: Kubernetes' docs, "Accessing the API from a Pod", "kubeconfig (v1)" and "Client Authentication (v1)".
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from onceonly.clusters.properties import hidden_file
from onceonly.errors import InvalidPipeline, NotCommitted

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # of every pod, unless it wants none
PATIENCE = 30.0  # seconds for a command that makes a token


@contextmanager
def access(context: str = "") -> Iterator[dict[str, Any]]:
    """Options of requests, as long as this block: files that hold keys exist for it alone.

    Raises:
        InvalidPipeline: there is neither.
    """
    if (ACCOUNT / "token").exists() and not os.environ.get("KUBECONFIG"):
        yield {"headers": _bearer((ACCOUNT / "token").read_text()), "verify": str(ACCOUNT / "ca.crt")}
        return
    with ExitStack() as files:
        yield _options(_read(), context, files)


def _read() -> Mapping[str, Any]:
    import yaml

    path = Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    try:
        found = yaml.safe_load(path.read_text())
    except OSError as error:
        raise InvalidPipeline(
            "this process cannot log in to Kubernetes.",
            f"It does not run in a pod with a service account, and KUBECONFIG cannot be read: {error}",
            "Set KUBECONFIG to the file that kubectl uses, where tasks and triggers run. Nothing was written.",
        ) from error
    return dict(found or {})


def _options(config: Mapping[str, Any], context: str, files: ExitStack) -> dict[str, Any]:
    chosen = _named(config, "context", context or config.get("current-context", ""))
    cluster, user = _named(config, "cluster", chosen.get("cluster", "")), _named(config, "user", chosen.get("user", ""))
    found: dict[str, Any] = {"verify": not cluster.get("insecure-skip-tls-verify")}
    if authority := _file(cluster, "certificate-authority", files):
        found["verify"] = authority
    certificate, key = _file(user, "client-certificate", files), _file(user, "client-key", files)
    if certificate and key:
        found["cert"] = (certificate, key)
    if token := _token(user):
        found["headers"] = _bearer(token)
    return found


def _named(config: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    """The entry of that name in the list of that kind."""
    return next((each.get(kind) or {} for each in config.get(f"{kind}s") or [] if each["name"] == name), {})


def _file(entry: Mapping[str, Any], name: str, files: ExitStack) -> str | None:
    """A path that it names, or a file with what it holds itself."""
    if held := entry.get(f"{name}-data"):
        return files.enter_context(hidden_file(base64.b64decode(held).decode()))[0]
    return entry.get(name)


def _token(user: Mapping[str, Any]) -> str | None:
    if path := user.get("tokenFile"):
        return Path(path).read_text()
    return user.get("token") or (_made(user["exec"]) if user.get("exec") else None)


def _made(by: Mapping[str, Any]) -> str | None:
    """The token that a command makes, as that of EKS, GKE and AKS does."""
    env = {each["name"]: each["value"] for each in by.get("env") or []}
    try:
        done = subprocess.run(
            [by["command"], *(by.get("args") or [])],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
        return str(json.loads(done.stdout)["status"]["token"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        raise NotCommitted(
            f"{by.get('command')} returned no token for Kubernetes.",
            str(getattr(error, "stderr", "") or type(error).__name__),  # what it printed may be the token
            "Run it by hand with the arguments in KUBECONFIG, as the user of tasks and triggers.",
        ) from None


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token.strip()}"}
