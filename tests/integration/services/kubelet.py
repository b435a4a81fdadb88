"""Runs the pods of a real Kubernetes API as processes of this machine: a scheduler and a kubelet of one node.

No container runtime is needed: a pod is a process group in its own mount namespace, where its volumes, and the names of
services, are as a pod sees them. The image is this machine and `docker/entrypoint.sh`; limits are not enforced.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from integration.services.kubernetes import Kubernetes
from integration.services.standalone import ROOT

from onceonly.dev.services import machine
from onceonly.spark.jvm import spark_home

NODE, EVERY = "here", 0.1  # seconds between two looks at what is wanted
IMAGE = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]),
    "SPARK_HOME": str(spark_home()),
}
NAMESPACE = """
set -e
mount -t tmpfs tmpfs "$1"
for top in opt run var; do
  mkdir -p "$1/$top/above" "$1/$top/work"
  mount -t overlay overlay -o "lowerdir=/$top,upperdir=$1/$top/above,workdir=$1/$top/work" "/$top"
done
mount --bind "$2" /etc/hosts
shift 2
while [ "$1" != -- ]; do
  mkdir -p "$2"
  mount --bind "$1" "$2"
  shift 2
done
shift
exec "$@"
"""


def can_run() -> bool:
    """Whether this user may make mount namespaces with overlays."""
    overlay = "mount -t overlay overlay -o lowerdir=/opt,upperdir=/mnt/above,workdir=/mnt/work /opt"
    asked = f"mount -t tmpfs tmpfs /mnt && mkdir /mnt/above /mnt/work && {overlay}"
    return bool(shutil.which("unshare")) and subprocess.run(["unshare", "-m", "sh", "-c", asked]).returncode == 0


@dataclass
class Container:
    """A pod's process, and what it has printed."""

    namespace: str
    name: str
    address: str
    process: subprocess.Popen[bytes]
    log: Path
    reported: bool = False

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, how)
        if how is signal.SIGKILL:
            self.process.wait()


@dataclass
class Kubelet:
    """Its node, and the pods that run there, by uid."""

    api: Kubernetes
    folder: Path
    pods: dict[str, Container] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _addresses: Iterator[int] = field(default_factory=lambda: iter(range(1, 250)))

    @property
    def hosts(self) -> Path:
        return self.folder / "hosts"

    def container(self, name: str) -> Container:
        """The one of a pod whose name begins so."""
        return next(pod for pod in self.pods.values() if pod.name.startswith(name))

    def work(self) -> None:
        while not self._over.wait(EVERY):
            try:
                self._look()
            except (AssertionError, OSError) as error:  # an API server that a test has killed
                self.trouble.append(str(error))

    def _look(self) -> None:
        wanted = self.api.ask("GET", "/api/v1/pods")["items"]
        self._name_services(wanted)
        for pod in wanted:
            uid, phase = pod["metadata"]["uid"], pod["status"].get("phase")
            if pod["metadata"].get("deletionTimestamp"):
                self._remove(pod)
            elif uid not in self.pods and phase == "Pending":
                self._start(pod)
            elif uid in self.pods and self.pods[uid].process.poll() is not None and not self.pods[uid].reported:
                self._report_end(pod)
        for uid in self.pods.keys() - {pod["metadata"]["uid"] for pod in wanted}:
            self.pods.pop(uid).kill()

    def _start(self, pod: Mapping[str, Any]) -> None:
        meta, [container] = pod["metadata"], pod["spec"]["containers"]
        address = f"127.0.1.{next(self._addresses)}"
        try:
            folder = self.folder / meta["uid"]
            env = {**self._environment(pod, container, address), "TMPDIR": str(folder)}
            mounts = list(self._mounts(pod, container, folder))
        except LookupError:  # a ConfigMap that comes after its pod
            return
        self._bind(pod)
        log, scratch = folder / "log", folder / "scratch"
        scratch.mkdir()
        made = [str(path) for path in (scratch, self.hosts, *mounts)]
        line = [*(container.get("command") or [str(ROOT / "docker" / "entrypoint.sh")]), *container.get("args", [])]
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["unshare", "-m", "bash", "-c", NAMESPACE, "pod", *made, "--", *line],
                env=env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pods[meta["uid"]] = Container(meta["namespace"], meta["name"], address, process, log)
        self._report(pod, "Running", {"running": {"startedAt": _now()}}, address)

    def _bind(self, pod: Mapping[str, Any]) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        self.api.ask("POST", f"{_path(pod)}/binding", {"metadata": {"name": pod["metadata"]["name"]}, "target": target})

    def _report_end(self, pod: Mapping[str, Any]) -> None:
        container = self.pods[pod["metadata"]["uid"]]
        code = container.process.returncode
        container.kill()  # what it has left behind
        ended = {"exitCode": code if code >= 0 else 128 - code, "reason": "Error" if code else "Completed"}
        phase = "Failed" if code else "Succeeded"
        self._report(pod, phase, {"terminated": {**ended, "finishedAt": _now()}}, container.address)
        container.reported = True

    def _report(self, pod: Mapping[str, Any], phase: str, state: Mapping[str, Any], address: str) -> None:
        [container] = pod["spec"]["containers"]
        seen = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
        status = {
            "phase": phase,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "startTime": _now(),
            "conditions": [{"type": "Ready", "status": str(phase == "Running")}],
            "containerStatuses": [{**seen, "ready": phase == "Running", "state": state}],
        }
        kind = "application/merge-patch+json"
        self.api.ask("PATCH", f"{_path(pod)}/status", {"status": status}, kind=kind, missing=True)

    def _remove(self, pod: Mapping[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        if uid in self.pods and self.pods[uid].process.poll() is None:
            self.pods[uid].kill(signal.SIGTERM)
            grace = datetime.fromisoformat(pod["metadata"]["deletionTimestamp"])
            if datetime.now(UTC) < grace:
                return
        if uid in self.pods:
            self.pods.pop(uid).kill()
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        self.api.ask("DELETE", _path(pod), body, missing=True)

    def _environment(self, pod: Mapping[str, Any], container: Mapping[str, Any], address: str) -> dict[str, str]:
        found = dict(IMAGE)
        for variable in container.get("env", []):
            found[variable["name"]] = variable.get("value") or self._value(
                pod, variable.get("valueFrom") or {}, address
            )
        return found

    def _value(self, pod: Mapping[str, Any], wanted: Mapping[str, Any], address: str) -> str:
        if ref := wanted.get("secretKeyRef"):
            data = self._data(pod, "secrets", ref["name"])
            return base64.b64decode(data[ref["key"]]).decode()
        if ref := wanted.get("fieldRef"):
            return {"status.podIP": address, "metadata.name": pod["metadata"]["name"]}[ref["fieldPath"]]
        return ""

    def _data(self, pod: Mapping[str, Any], kind: str, name: str) -> Mapping[str, str]:
        found = self.api.ask("GET", f"/api/v1/namespaces/{pod['metadata']['namespace']}/{kind}/{name}", missing=True)
        if not found:
            raise LookupError(name)
        return dict(found.get("data") or {})

    def _mounts(self, pod: Mapping[str, Any], container: Mapping[str, Any], folder: Path) -> Iterator[str]:
        """A folder of this machine, where it is in the pod, and so on."""
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        for mount in container.get("volumeMounts", []):
            here = folder / mount["name"]
            here.mkdir(parents=True, exist_ok=True)
            self._fill(pod, volumes[mount["name"]], here)
            yield from (str(here), mount["mountPath"])

    def _fill(self, pod: Mapping[str, Any], volume: Mapping[str, Any], here: Path) -> None:
        if config := volume.get("configMap"):
            self._write(here, self._data(pod, "configmaps", config["name"]))
        if secret := volume.get("secret"):
            data = self._data(pod, "secrets", secret["secretName"])
            self._write(here, {key: base64.b64decode(value).decode() for key, value in data.items()})
        for source in (volume.get("projected") or {}).get("sources", []):
            if source.get("serviceAccountToken"):
                meta = pod["metadata"]
                token = self.api.token(meta["namespace"], pod["spec"].get("serviceAccountName", "default"))
                self._write(here, {"token": token})
            if source.get("configMap"):
                self._write(here, self._data(pod, "configmaps", source["configMap"]["name"]))
        if "projected" in volume:
            self._write(here, {"namespace": pod["metadata"]["namespace"]})

    def _write(self, folder: Path, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            (folder / name).write_text(text)

    def _name_services(self, pods: Sequence[Mapping[str, Any]]) -> None:
        """As the cluster's DNS would: a service is at the address of the pod that it selects."""
        lines = [Path("/etc/hosts").read_text()]
        for service in self.api.ask("GET", "/api/v1/services")["items"]:
            meta, selector = service["metadata"], service["spec"].get("selector")
            for pod in pods:
                labels, address = pod["metadata"].get("labels", {}), pod["status"].get("podIP")
                if selector and address and selector.items() <= labels.items():
                    lines.append(f"{address} {meta['name']}.{meta['namespace']}.svc")
        text = "\n".join([*lines, ""])
        if not self.hosts.exists() or self.hosts.read_text() != text:
            self.hosts.write_text(text)  # in place: pods have it mounted


@contextmanager
def kubelet(api: Kubernetes, folder: Path) -> Iterator[Kubelet]:
    made = Kubelet(api, folder)
    server = _logs(made)
    worker = threading.Thread(target=made.work, name="kubelet")
    try:
        _join(api, server.server_address[1])
        threading.Thread(target=server.serve_forever, name="kubelet-logs").start()
        worker.start()
        yield made
    finally:
        made._over.set()
        if worker.ident:
            worker.join()
        server.shutdown()
        server.server_close()
        for pod in made.pods.values():
            pod.kill()


def _join(api: Kubernetes, port: int) -> None:
    """As a node, at which the API server asks for logs."""
    api.ask("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
    status = {
        "addresses": [{"type": "InternalIP", "address": machine.LOCALHOST}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    api.ask("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": status}, kind="application/merge-patch+json")


def _logs(of: Kubelet) -> ThreadingHTTPServer:
    class Logs(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            place = urlsplit(self.path)
            _, kind, namespace, name, _ = place.path.split("/")
            found = [pod for pod in of.pods.values() if (pod.namespace, pod.name) == (namespace, name)]
            self.send_response(200 if found and kind == "containerLogs" else 404)
            self.end_headers()
            for each in found:
                lines = each.log.read_bytes().splitlines(keepends=True)
                self.wfile.write(b"".join(lines[-int(parse_qs(place.query).get("tailLines", ["1000"])[0]) :]))

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer((machine.LOCALHOST, 0), Logs)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(of.api.server.authority, of.api.server.folder / "apiserver.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return server


def _path(pod: Mapping[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
