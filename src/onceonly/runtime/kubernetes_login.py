"""The login of this process to a Kubernetes API: by the service account of its pod, or by KUBECONFIG.

The official client (`kubernetes`, looked at in version 37) is not used. It writes keys that KUBECONFIG holds to files
that stay until the process exits, or permanently if it is killed. It logs the failure of a token command, and then asks
without a login. It makes an object without fields of any JSON, so another web server would say how a pod is.

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

from onceonly.errors import InvalidPipeline, NotCommitted, OnceonlyError
from onceonly.runtime.child_process import hidden_file

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # of every pod, unless it wants none
TOKEN_COMMAND_TIMEOUT_SECONDS = 30.0
RENEW_TOKEN_BEFORE_SECONDS = 60.0  # its end
_tokens: dict[str, tuple[str, float]] = {}  # by the command: the token, and when it ends


@contextmanager
def log_in(context: str = "") -> Iterator[dict[str, Any]]:
    """Yield options of requests, valid as long as this block: files that hold keys exist for it alone.

    Raises:
        InvalidPipeline: there is neither a service account nor a KUBECONFIG.
        NotCommitted: what is there cannot be read: it may just be replaced.
    """
    with ExitStack() as files:
        yield _read_options(context, files)


def _read_options(context: str, files: ExitStack) -> dict[str, Any]:
    try:
        if (SERVICE_ACCOUNT / "token").exists() and not os.environ.get("KUBECONFIG"):
            return {
                "headers": _bearer((SERVICE_ACCOUNT / "token").read_text()),
                "verify": str(SERVICE_ACCOUNT / "ca.crt"),
            }
        return _options_of_context(_read_config(), context, files)
    except OnceonlyError:
        raise
    except Exception as error:
        raise NotCommitted(
            "this process could not log in to Kubernetes.",
            str(error) if isinstance(error, OSError) else type(error).__name__,  # others may show what is in the file
            f"Look at {SERVICE_ACCOUNT}, or at the file that KUBECONFIG names.",
            code="cluster-login-failed",
        ) from None


def _read_config() -> Mapping[str, Any]:
    import yaml

    path = _config_path()
    try:
        text = path.read_text()
    except OSError as error:
        raise InvalidPipeline(
            "this process cannot log in to Kubernetes.",
            f"It does not run in a pod with a service account, and KUBECONFIG cannot be read: {error}",
            "Set KUBECONFIG to the file that kubectl uses, where tasks and triggers run. Nothing was written.",
            code="cluster-login-failed",
        ) from error
    return dict(yaml.safe_load(text) or {})


def _config_path() -> Path:
    return Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")


def _options_of_context(config: Mapping[str, Any], context: str, files: ExitStack) -> dict[str, Any]:
    context_entry = _find_entry(config, "context", context or config.get("current-context", ""))
    cluster = _find_entry(config, "cluster", context_entry.get("cluster", ""))
    user = _find_entry(config, "user", context_entry.get("user", ""))
    options: dict[str, Any] = {"verify": not cluster.get("insecure-skip-tls-verify")}
    authority = _find_file(cluster, "certificate-authority", files)
    if authority:
        options["verify"] = authority
    certificate, key = _find_file(user, "client-certificate", files), _find_file(user, "client-key", files)
    if certificate and key:
        options["cert"] = (certificate, key)
    token = _find_token(user)
    if token:
        options["headers"] = _bearer(token)
    return options


def _find_entry(config: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    """Return the entry of that name in the list of that kind; an empty one, if there is none."""
    for entry in config.get(f"{kind}s") or []:
        if entry["name"] == name:
            return entry.get(kind) or {}
    return {}


def _find_file(entry: Mapping[str, Any], name: str, files: ExitStack) -> str | None:
    """Return the path that an entry names, or that of a file with the content that it holds itself."""
    content = entry.get(f"{name}-data")
    if content:
        return files.enter_context(hidden_file(base64.b64decode(content)))[0]
    if not entry.get(name):
        return None
    return str(_config_path().parent / entry[name])  # a relative path begins there


def _find_token(user: Mapping[str, Any]) -> str | None:
    path = user.get("tokenFile")
    if path:
        return (_config_path().parent / str(path)).read_text()
    if user.get("token"):
        return str(user["token"])
    if user.get("exec"):
        return _make_token(user["exec"])
    return None


def forget_tokens() -> None:
    """Forget the tokens that commands have made: the API does not take one of them."""
    _tokens.clear()


def _make_token(command: Mapping[str, Any]) -> str:
    """Return the token that a command makes, as that of EKS, GKE and AKS does. It is kept as long as it is valid."""
    key = json.dumps(command, sort_keys=True)
    token, end = _tokens.get(key, ("", 0.0))
    if time.time() > end - RENEW_TOKEN_BEFORE_SECONDS:
        status = _run_command(command)
        token, end = status["token"], _seconds(status.get("expirationTimestamp"))
        _tokens[key] = (token, end)
    return token


def _seconds(timestamp: str | None) -> float:
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0


def _run_command(command: Mapping[str, Any]) -> dict[str, str]:
    """Return the status that a command prints: 'token', and when it ends."""
    env = {variable["name"]: variable["value"] for variable in command.get("env") or []}
    try:
        process = subprocess.run(
            [command["command"], *(command.get("args") or [])],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TOKEN_COMMAND_TIMEOUT_SECONDS,
            check=True,
        )
        status = json.loads(process.stdout)["status"]
        return {"token": str(status["token"]), **status}
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        raise NotCommitted(
            f"{command.get('command')} returned no token for Kubernetes.",
            str(getattr(error, "stderr", "") or type(error).__name__),  # what it printed may be the token
            "Run it by hand with the arguments in KUBECONFIG, as the user of tasks and triggers.",
            code="cluster-login-failed",
        ) from None


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token.strip()}"}
