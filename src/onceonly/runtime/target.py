"""The place of Spark, as an Airflow connection describes it. The fields are those of Airflow's own Spark provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from onceonly import redaction
from onceonly.errors import InvalidPipeline
from onceonly.runtime import fields, keytab
from onceonly.runtime.fields import MANAGER

REST_PORT = 6066  # Spark's own default
WHERE_SECRETS_GO = {
    "spark": "Give them to Spark's workers, in spark-defaults.conf or in their environment (AWS_SECRET_ACCESS_KEY, …), "
    "or set 'deploy-mode' to client. Nothing was written.",
    "k8s": "Name a Secret of Kubernetes: spark.kubernetes.driver.secretKeyRef.AWS_SECRET_ACCESS_KEY=name:key (and "
    "….executor.…), or set 'deploy-mode' to client. Nothing was written.",
}
ENVIRONMENT = ("spark.yarn.appMasterEnv.", "spark.executorEnv.", "spark.kubernetes.driverEnv.")
CONNECTION = "AIRFLOW_CONN_"
WHERE_VARIABLES_GO = {  # where a cluster shows the environment of containers
    "yarn": "A NodeManager serves it as launch_container.sh. Connections that a pipeline names are sent separately; "
    "other secrets may be settings of Spark or Hadoop (spark.hadoop.…). Nothing was written.",
    "k8s": "Name a Secret of Kubernetes: spark.kubernetes.executor.secretKeyRef.NAME=name:key. Nothing was written.",
}


@dataclass(frozen=True)
class Target:
    """The place of Spark: a master for spark-submit, or a Connect address."""

    master: str = "local[*]"
    remote: str | None = field(default=None, repr=False)  # may hold a token
    cluster: str | None = None  # the driver is to run there: see `runtime.addresses`
    conf: dict[str, str] = field(default_factory=dict, repr=False)
    connection: str = field(default="", compare=False)  # its id


def of_connection(
    conn_id: str,
    host: str | None,
    port: int | None,
    password: str | None,
    extra: Any,
    kind: str = "spark",
    login: str | None = None,
) -> Target:
    """Return the target that these fields of a connection describe. `kind`: its type.

    Raises:
        InvalidPipeline: they describe what cannot be done.
    """
    fields.refuse_unused(conn_id, extra)
    master = fields.master(kind, host, port)
    if master.startswith("sc://"):
        ssl = "true" if str(extra.get("use_ssl", "")).lower() == "true" else None
        return Target(remote=_with_parameters(master, user_id=login, use_ssl=ssl, token=password), connection=conn_id)
    conf = fields.settings(conn_id, extra)
    cluster = _cluster(conn_id, master, extra, conf)
    fields.refuse_login(conn_id, master, cluster)
    _refuse_stored_secrets(conn_id, conf, master if cluster else "")
    _refuse_visible_secrets(conn_id, conf, master)
    return Target(master, cluster=cluster, conf=conf, connection=conn_id)


def _with_parameters(address: str, **parameters: str | None) -> str:
    """Return a Connect address with parameters, as PySpark takes them; the token of the server is one of them."""
    suffix = "".join(f";{name}={quote(value, safe='')}" for name, value in parameters.items() if value)
    if not suffix:
        return address
    separator = "" if "/;" in address else "/"
    return f"{address}{separator}{suffix}"


def _cluster(conn_id: str, master: str, extra: Mapping[str, Any], conf: Mapping[str, str]) -> str | None:
    """Return where to submit drivers, for deploy mode 'cluster'; None for 'client'."""
    mode = extra.get("deploy-mode") or "client"
    if mode == "client":
        return None
    master_url = urlsplit(master)
    if mode == "cluster" and master_url.scheme == "spark" and "," not in master_url.netloc:
        return _rest_server(conn_id, master_url, extra)
    if mode == "cluster" and master == "yarn":
        return f"yarn+{_resource_managers(conn_id, extra)}"
    if mode == "cluster" and master_url.scheme == "k8s":
        namespace = conf.get("spark.kubernetes.namespace", "default")
        address = f"k8s+{_api_server(master)}/{namespace}"
        context = conf.get("spark.kubernetes.context", "")
        return f"{address}?context={quote(context)}" if context else address
    raise InvalidPipeline(
        f"the Airflow connection '{conn_id}' has deploy mode {mode!r} for {redaction.CREDENTIALS.sub('://', master)}.",
        "A driver runs where the task does ('client'), or on one standalone master, YARN or Kubernetes ('cluster').",
        "Set 'deploy-mode' in its extra to client, or its host to spark://…, yarn or k8s://…. Nothing was written.",
    )


def _rest_server(conn_id: str, master_url: SplitResult, extra: Mapping[str, Any]) -> str:
    """Return the address of the REST server of a standalone master."""
    scheme = extra.get("rest-scheme") or "http"
    if scheme not in ("http", "https"):
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has rest-scheme {scheme!r}.",
            todo="Set it to http or https. Nothing was written.",
        )
    if keytab.content_of(str(extra.get(fields.KEYTAB) or "")):
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' holds a keytab.",
            "Its deploy mode is 'cluster', and a standalone master sends no files to the driver.",
            "Give a path on Spark's workers instead, or set 'deploy-mode' to client. Nothing was written.",
        )
    return f"{scheme}://{master_url.hostname}:{extra.get('rest-port') or REST_PORT}"


def _resource_managers(conn_id: str, extra: Mapping[str, Any]) -> str:
    """Return the addresses of YARN's ResourceManagers, separated by commas; http where a scheme is missing."""
    addresses = []
    for part in str(extra.get(MANAGER) or "").split(","):
        if part.strip():
            address = part.strip().rstrip("/")
            addresses.append(address if "://" in address else f"http://{address}")
    if not addresses:
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has deploy mode 'cluster' for YARN, and no {MANAGER}.",
            "The task finds and ends its driver at that address.",
            f'Add it to the extra: "{MANAGER}": "http://host:8088" (of several, separate them by commas). '
            "Nothing was written.",
        )
    return ",".join(addresses)


def _api_server(master: str) -> str:
    """Return the address of Kubernetes' API; https where the master does not say otherwise, as Spark has it."""
    address = master.removeprefix("k8s://").rstrip("/")
    return address if "://" in address else f"https://{address}"


def _refuse_stored_secrets(conn_id: str, conf: Mapping[str, str], cluster: str) -> None:
    """Refuse the secrets that a cluster would keep where others can read them. `cluster`: nothing in client mode."""
    secrets = sorted(redaction.secret(conf))
    todo = WHERE_SECRETS_GO.get(cluster.partition(":")[0])
    if secrets and todo:
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has secrets in its conf: {', '.join(secrets)}.",
            "Its deploy mode is 'cluster': the cluster would store them where others can see them.",
            todo,
        )


def _refuse_visible_secrets(conn_id: str, conf: Mapping[str, str], master: str) -> None:
    """Refuse the secrets that anyone can see while Spark runs, however they reach it."""
    secrets = redaction.secret(conf)
    jvm_arguments = [key for key in redaction.of_a_jvm(conf) if key in secrets]
    if jvm_arguments:
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has secrets in its conf: {', '.join(jvm_arguments)}.",
            "They are arguments of a Java process, which every user of its machine can see.",
            "Write them to a file with mode 600, and give '@' and its path instead. Nothing was written.",
        )
    variables = []
    for key in conf:
        if key.startswith(ENVIRONMENT) and (key in secrets or CONNECTION in key):
            variables.append(key)
    todo = WHERE_VARIABLES_GO.get(master.partition(":")[0])
    if variables and todo:
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has secrets in its conf: {', '.join(sorted(variables))}.",
            "They become environment variables of a container, which the cluster shows to others.",
            todo,
        )
