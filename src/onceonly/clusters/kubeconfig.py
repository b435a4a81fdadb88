"""How this process may ask a Kubernetes API: by the service account of its pod, or by KUBECONFIG.

Source: Kubernetes' docs, "Accessing the API from a Pod", "kubeconfig (v1)" and "Client Authentication (v1)".
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from onceonly.clusters.properties import hidden_file
from onceonly.errors import InvalidPipeline, NotCommitted, OnceonlyError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # of every pod, unless it wants none
PATIENCE = 30.0  # seconds for a command that makes a token
SOON = 60.0  # seconds before the end of a token, when another one is made
_tokens: dict[str, tuple[str, float]] = {}  # by the command: the token, and when it ends


@contextmanager
def access(context: str = "") -> Iterator[dict[str, Any]]:
    """Options of requests, as long as this block: files that hold keys exist for it alone.

    Raises:
        InvalidPipeline: there is neither.
        NotCommitted: what is there cannot be read: it may just be replaced.
    """
    with ExitStack() as files:
        yield _found(context, files)


def _found(context: str, files: ExitStack) -> dict[str, Any]:
    try:
        if (ACCOUNT / "token").exists() and not os.environ.get("KUBECONFIG"):
            return {"headers": _bearer((ACCOUNT / "token").read_text()), "verify": str(ACCOUNT / "ca.crt")}
        return _options(_read(), context, files)
    except OnceonlyError:
        raise
    except Exception as error:
        raise NotCommitted(
            "this process could not log in to Kubernetes.",
            str(error) if isinstance(error, OSError) else type(error).__name__,  # others may show what is in the file
            f"Look at {ACCOUNT}, or at the file that KUBECONFIG names.",
        ) from None


def _read() -> Mapping[str, Any]:
    import yaml

    path = _path()
    try:
        text = path.read_text()
    except OSError as error:
        raise InvalidPipeline(
            "this process cannot log in to Kubernetes.",
            f"It does not run in a pod with a service account, and KUBECONFIG cannot be read: {error}",
            "Set KUBECONFIG to the file that kubectl uses, where tasks and triggers run. Nothing was written.",
        ) from error
    return dict(yaml.safe_load(text) or {})


def _path() -> Path:
    return Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")


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
        return files.enter_context(hidden_file(base64.b64decode(held)))[0]
    return str(_path().parent / entry[name]) if entry.get(name) else None  # a relative path begins there


def _token(user: Mapping[str, Any]) -> str | None:
    if path := user.get("tokenFile"):
        return (_path().parent / str(path)).read_text()
    if user.get("token"):
        return str(user["token"])
    return _made(user["exec"]) if user.get("exec") else None


def forget() -> None:
    """The tokens that commands have made: the API does not take one of them."""
    _tokens.clear()


def _made(by: Mapping[str, Any]) -> str:
    """The token that a command makes, as that of EKS, GKE and AKS does. It is kept as long as it is valid."""
    name = json.dumps(by, sort_keys=True)
    token, until = _tokens.get(name, ("", 0.0))
    if time.time() > until - SOON:
        status = _run(by)
        token, until = status["token"], _seconds(status.get("expirationTimestamp"))
        _tokens[name] = (token, until)
    return token


def _seconds(timestamp: str | None) -> float:
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0


def _run(by: Mapping[str, Any]) -> dict[str, str]:
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
        status = json.loads(done.stdout)["status"]
        return {"token": str(status["token"]), **status}
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        raise NotCommitted(
            f"{by.get('command')} returned no token for Kubernetes.",
            str(getattr(error, "stderr", "") or type(error).__name__),  # what it printed may be the token
            "Run it by hand with the arguments in KUBECONFIG, as the user of tasks and triggers.",
        ) from None


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token.strip()}"}
