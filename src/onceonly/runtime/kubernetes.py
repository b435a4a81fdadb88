"""Kubernetes: spark-submit makes the driver's pod, which is looked at and ended over the API.

This process logs in there by the service account of its pod, or by KUBECONFIG. The official client (`kubernetes`,
looked at in version 37) is not used. It writes keys that KUBECONFIG holds to files that stay until the process exits,
or permanently if it is killed. It logs the failure of a token command, and then asks without a login. It makes an
object without fields of any JSON, so another web server would say how a pod is.

Source: Kubernetes' API reference, "Pod", and docs, "Accessing the API from a Pod", "kubeconfig (v1)" and "Client
Authentication (v1)"; Spark's docs, "Running Spark on Kubernetes".
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import requests

from onceonly.errors import InvalidPipeline, NotCommitted, OnceonlyError
from onceonly.runtime.child_process import hidden_file
from onceonly.runtime.cluster import (
    GONE,
    ApplicationStatus,
    RunningApplication,
    parse_object,
    require_submitted,
    send_request,
)
from onceonly.runtime.spark_submit import DriverJob, SparkSubmit, program
from onceonly.spark.conf import conf as session_conf

ENDED_PHASES = ("Succeeded", "Failed")
TAG, NAME = "onceonly-tag", "onceonly-job"  # a label of the pod, and an annotation
DRIVER = "spark-kubernetes-driver"  # Spark's own name for the container
LOG_LINES = 200  # the last ones are often the frames of a stack trace
UPLOAD = "spark.kubernetes.file.upload.path"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # of every pod, unless it wants none
TOKEN_COMMAND_TIMEOUT_SECONDS = 30.0
RENEW_TOKEN_BEFORE_SECONDS = 60.0  # its end
API_REMEDY = "Check that the connection's host names it, and that tasks and triggers can reach it."
_tokens: dict[str, tuple[str, float]] = {}  # by the command: the token, and when it ends


@dataclass(frozen=True)
class Kubernetes:
    """The API server at that address, a namespace, and which context of KUBECONFIG to use, if not its current one."""

    server: str
    namespace: str
    context: str = ""

    def submit(self, job: DriverJob, launcher: SparkSubmit) -> str:
        """Start a driver's pod. A pod that never began may lack what spark-submit makes after it, so it is removed."""
        for pod in self._pods(job.tag):
            if _phase(pod) == "Pending":
                self.end(pod["metadata"]["name"])
        code, lines = launcher.run(job, self._conf(job), _spark_path(str(program(job.step)), job))
        return require_submitted(self, job, code, lines)

    def list_submitted(self, job: DriverJob) -> Sequence[str]:
        """Return the name of the job's pod, if there is one: it is made from the nonce of the job."""
        name = _pod_name(job)
        return [name] if self._pod(name) else []

    def find(self, tag: str) -> Sequence[RunningApplication]:
        """Return pods that nobody has deleted, the oldest first. One that only waits has done nothing yet."""
        pods = []
        for pod in self._pods(tag):
            if _phase(pod) in ("Running", "Unknown") and not _is_deleted(pod):
                pods.append(pod)
        pods.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
        return [RunningApplication(pod["metadata"]["name"], str(_annotations(pod).get(NAME))) for pod in pods]

    def look(self, application: str) -> ApplicationStatus:
        pod = self._pod(application)
        if not pod:
            return GONE
        phase, reasons = _phase(pod), _reasons(pod)
        state = f"{phase} ({', '.join(reasons)})" if reasons else phase
        return ApplicationStatus(state, phase not in ENDED_PHASES)

    def end(self, application: str) -> None:
        """Delete the pod. Its executors go with it: they belong to the pod."""
        self._require(self._ask("DELETE", f"pods/{application}"), f"end {application}", "Pod", "Status")

    def describe_log(self, application: str) -> str:
        return f"kubectl logs -n {self.namespace} {application}"

    def tail(self, application: str) -> Sequence[str]:
        pod = self._pod(application)
        containers = [container["name"] for container in pod.get("spec", {}).get("containers", [])]
        if not containers:
            return []
        container = DRIVER if DRIVER in containers else containers[0]
        params = {"container": container, "tailLines": str(LOG_LINES)}
        answer = self._ask("GET", f"pods/{application}/log", params=params)
        if answer.status_code != 200:
            return []
        return answer.text.splitlines()

    def _pod(self, name: str) -> dict[str, Any]:
        return self._require(self._ask("GET", f"pods/{name}"), f"report the status of {name}", "Pod")

    def _pods(self, tag: str) -> list[dict[str, Any]]:
        answer = self._ask("GET", "pods", params={"labelSelector": f"{TAG}={tag}"})
        return list(self._require(answer, "list pods", "PodList").get("items") or [])

    def _require(self, answer: requests.Response, what: str, *kinds: str) -> dict[str, Any]:
        """Return the object of an answer, which is to be of one of these kinds; empty where there is no such thing."""
        content = parse_object(answer) or {}
        if answer.status_code == 404 and content.get("reason") == "NotFound":
            return {}
        if answer.status_code not in (200, 202) or content.get("kind") not in kinds:
            raise NotCommitted(
                f"the Kubernetes API at {self.server} did not {what}: {answer.status_code}.",
                str(content.get("message") or answer.text[:200]),
                "The service account, or the user of KUBECONFIG, must be allowed to get, list and delete pods "
                f"(and get pods/log) in the namespace {self.namespace}.",
                code="cluster-refused",
            )
        return content

    def _ask(self, method: str, path: str, params: Mapping[str, str] | None = None) -> requests.Response:
        url = f"{self.server}/api/v1/namespaces/{self.namespace}/{path}"
        with log_in(self.context) as options:
            answer = send_request("the Kubernetes API", method, url, API_REMEDY, params=params, **options)
        if answer.status_code == 401:
            forget_tokens()
        return answer

    def _conf(self, job: DriverJob) -> dict[str, str]:
        env = {f"spark.kubernetes.driverEnv.{name}": value for name, value in job.settings.environment().items()}
        jars_conf = {}
        jars = session_conf(job.settings).get("spark.jars")
        if jars:
            jars_conf["spark.jars"] = ",".join(_spark_path(jar, job) for jar in jars.split(","))
        return {
            **env,
            **jars_conf,
            "spark.pyspark.python": "python3",  # that of the image, and not that of this machine
            **job.spark.conf,
            "spark.kubernetes.namespace": self.namespace,
            "spark.kubernetes.submission.waitAppCompletion": "false",
            "spark.kubernetes.driver.pod.name": _pod_name(job),
            f"spark.kubernetes.driver.label.{TAG}": job.tag,
            f"spark.kubernetes.driver.annotation.{NAME}": job.name,
        }


def _pod_name(job: DriverJob) -> str:
    return f"onceonly-{job.step}-{job.nonce}"


def _spark_path(path: str, job: DriverJob) -> str:
    """Return what Spark calls a file of this machine: uploaded where Spark is told how, else that path in the image."""
    return path if UPLOAD in job.spark.conf else f"local://{path}"


def _phase(pod: Mapping[str, Any]) -> str:
    """Return the pod's phase. `Unknown`: its node does not answer. A pod that was just made may have none."""
    return str((pod.get("status") or {}).get("phase"))


def _annotations(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return pod["metadata"].get("annotations") or {}


def _is_deleted(pod: Mapping[str, Any]) -> bool:
    """Return whether somebody has asked for its end.

    On a node that is lost, it stays like that until the node is removed.
    """
    return bool(pod["metadata"].get("deletionTimestamp"))


def _reasons(pod: Mapping[str, Any]) -> list[str]:
    """Return why its containers wait or have ended, in Kubernetes' words: ImagePullBackOff, OOMKilled, …"""
    reasons = []
    if _is_deleted(pod):
        reasons.append("Terminating")
    for status in (pod.get("status") or {}).get("containerStatuses") or []:
        for state in ("waiting", "terminated"):
            with suppress(KeyError):
                reasons.append(str(status["state"][state]["reason"]))
    return reasons


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
