"""Kubernetes: spark-submit makes the driver's pod, which is looked at and ended over the API.

Source: Kubernetes' API reference, "Pod"; Spark's docs, "Running Spark on Kubernetes".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import requests

from onceonly.errors import NotCommitted
from onceonly.runtime import cluster_api, kubernetes_login
from onceonly.runtime.cluster import GONE, ApplicationStatus, DriverJob, Launcher, RunningApplication, require_submitted
from onceonly.runtime.jobs import program
from onceonly.spark.conf import conf as session_conf

ENDED_PHASES = ("Succeeded", "Failed")
TAG, NAME = "onceonly-tag", "onceonly-job"  # a label of the pod, and an annotation
DRIVER = "spark-kubernetes-driver"  # Spark's own name for the container
LOG_LINES = 200  # the last ones are often the frames of a stack trace
UPLOAD = "spark.kubernetes.file.upload.path"
API_REMEDY = "Check that the connection's host names it, and that tasks and triggers can reach it."


@dataclass(frozen=True)
class Kubernetes:
    """The API server at that address, a namespace, and which context of KUBECONFIG to use, if not its current one."""

    server: str
    namespace: str
    context: str = ""

    def submit(self, job: DriverJob, launcher: Launcher) -> str:
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
        content = cluster_api.parse_object(answer) or {}
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
        with kubernetes_login.log_in(self.context) as options:
            answer = cluster_api.send_request("the Kubernetes API", method, url, API_REMEDY, params=params, **options)
        if answer.status_code == 401:
            kubernetes_login.forget_tokens()
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
