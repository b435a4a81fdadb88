"""Where Spark is, as an Airflow connection says it. The fields are those of Airflow's own Spark provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from onceonly import redaction
from onceonly.clusters import fields, keytab
from onceonly.clusters.fields import MANAGER
from onceonly.errors import InvalidPipeline

REST_PORT = 6066  # Spark's own default
WHERE_SECRETS_GO = {
    "spark": "Give them to Spark's workers, in spark-defaults.conf or in their environment (AWS_SECRET_ACCESS_KEY, …), "
    "or set 'deploy-mode' to client. Nothing was written.",
    "k8s": "Name a Secret of Kubernetes: spark.kubernetes.driver.secretKeyRef.AWS_SECRET_ACCESS_KEY=name:key (and "
    "….executor.…), or set 'deploy-mode' to client. Nothing was written.",
}
ENVIRONMENT = ("spark.yarn.appMasterEnv.", "spark.executorEnv.", "spark.kubernetes.driverEnv.")
CONNECTION = "AIRFLOW_CONN_"
SERVED = {
    "yarn": "A NodeManager serves it as launch_container.sh. Connections that a pipeline names are sent separately; "
    "other secrets may be settings of Spark or Hadoop (spark.hadoop.…). Nothing was written.",
    "k8s": "Name a Secret of Kubernetes: spark.kubernetes.executor.secretKeyRef.NAME=name:key. Nothing was written.",
}


@dataclass(frozen=True)
class Target:
    """Where Spark is: a master for spark-submit, or a Connect address."""

    master: str = "local[*]"
    remote: str | None = field(default=None, repr=False)  # may hold a token
    cluster: str | None = None  # the driver is to run there: see `clusters.addresses`
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
    """What these fields of a connection mean. `kind`: its type.

    Raises:
        InvalidPipeline: they say what cannot be done.
    """
    fields.refuse_unused(conn_id, extra)
    master = fields.master(kind, host, port)
    if master.startswith("sc://"):
        ssl = "true" if str(extra.get("use_ssl", "")).lower() == "true" else None
        return Target(remote=_with_parameters(master, user_id=login, use_ssl=ssl, token=password), connection=conn_id)
    conf = fields.settings(conn_id, extra)
    cluster = _cluster(conn_id, master, extra, conf)
    fields.refuse_login(conn_id, master, cluster)
    _refuse_stored(conn_id, conf, master if cluster else "")
    _refuse_shown(conn_id, conf, master)
    return Target(master, cluster=cluster, conf=conf, connection=conn_id)


def _with_parameters(address: str, **given: str | None) -> str:
    """As PySpark takes them, the token of a Spark Connect server among them."""
    said = "".join(f";{name}={quote(value, safe='')}" for name, value in given.items() if value)
    return f"{address}{'' if '/;' in address else '/'}{said}" if said else address


def _cluster(conn_id: str, master: str, extra: Mapping[str, Any], conf: Mapping[str, str]) -> str | None:
    """Where to submit drivers, for deploy mode 'cluster'."""
    mode = extra.get("deploy-mode") or "client"
    if mode == "client":
        return None
    place = urlsplit(master)
    if mode == "cluster" and place.scheme == "spark" and "," not in place.netloc:
        return _rest(conn_id, place, extra)
    if mode == "cluster" and master == "yarn":
        return f"yarn+{_manager(conn_id, extra)}"
    if mode == "cluster" and place.scheme == "k8s":
        namespace = conf.get("spark.kubernetes.namespace", "default")
        context = conf.get("spark.kubernetes.context", "")
        return f"k8s+{_server(master)}/{namespace}{f'?context={quote(context)}' if context else ''}"
    raise InvalidPipeline(
        f"the Airflow connection '{conn_id}' has deploy mode {mode!r} for {redaction.CREDENTIALS.sub('://', master)}.",
        "A driver runs where the task does ('client'), or on one standalone master, YARN or Kubernetes ('cluster').",
        "Set 'deploy-mode' in its extra to client, or its host to spark://…, yarn or k8s://…. Nothing was written.",
    )


def _rest(conn_id: str, place: SplitResult, extra: Mapping[str, Any]) -> str:
    """The REST server of a standalone master."""
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
    return f"{scheme}://{place.hostname}:{extra.get('rest-port') or REST_PORT}"


def _manager(conn_id: str, extra: Mapping[str, Any]) -> str:
    given = [each.strip().rstrip("/") for each in str(extra.get(MANAGER) or "").split(",") if each.strip()]
    if not given:
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has deploy mode 'cluster' for YARN, and no {MANAGER}.",
            "The task finds and ends its driver at that address.",
            f'Add it to the extra: "{MANAGER}": "http://host:8088" (of several, separate them by commas). '
            "Nothing was written.",
        )
    return ",".join(each if "://" in each else f"http://{each}" for each in given)


def _server(master: str) -> str:
    """Of the API; https where the master does not say otherwise, as Spark has it."""
    given = master.removeprefix("k8s://").rstrip("/")
    return given if "://" in given else f"https://{given}"


def _refuse_stored(conn_id: str, conf: Mapping[str, str], cluster: str) -> None:
    """Refuse the secrets that a cluster would keep where others can read them. `cluster`: nothing in client mode."""
    hidden = sorted(redaction.secret(conf))
    if hidden and (todo := WHERE_SECRETS_GO.get(cluster.partition(":")[0])):
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has secrets in its conf: {', '.join(hidden)}.",
            "Its deploy mode is 'cluster': the cluster would store them where others can see them.",
            todo,
        )


def _refuse_shown(conn_id: str, conf: Mapping[str, str], master: str) -> None:
    """Refuse the secrets that anyone can see while Spark runs, however they reach it."""
    hidden = redaction.secret(conf)
    if shown := [key for key in redaction.of_a_jvm(conf) if key in hidden]:
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has secrets in its conf: {', '.join(shown)}.",
            "They are arguments of a Java process, which every user of its machine can see.",
            "Write them to a file with mode 600, and give '@' and its path instead. Nothing was written.",
        )
    served = [key for key in conf if key.startswith(ENVIRONMENT) and (key in hidden or CONNECTION in key)]
    if served and (todo := SERVED.get(master.partition(":")[0])):
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has secrets in its conf: {', '.join(sorted(served))}.",
            "They become environment variables of a container, which the cluster shows to others.",
            todo,
        )
