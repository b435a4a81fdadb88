"""The Airflow connection to Spark: what its fields mean, and what is refused in them.

The fields are those of Airflow's own Spark provider.
Source: apache-airflow-providers-apache-spark, `SparkSubmitHook` and `SparkConnectHook`.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from onceonly import redaction
from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline
from onceonly.runtime.child_process import hidden_file

REST_PORT = 6066  # Spark's own default
SECRET_REMEDIES = {
    "spark": "Give them to Spark's workers, in spark-defaults.conf or in their environment (AWS_SECRET_ACCESS_KEY, …), "
    "or set 'deploy-mode' to client. Nothing was written.",
    "k8s": "Name a Secret of Kubernetes: spark.kubernetes.driver.secretKeyRef.AWS_SECRET_ACCESS_KEY=name:key (and "
    "….executor.…), or set 'deploy-mode' to client. Nothing was written.",
}
ENVIRONMENT_PREFIXES = ("spark.yarn.appMasterEnv.", "spark.executorEnv.", "spark.kubernetes.driverEnv.")
CONNECTION_PREFIX = "AIRFLOW_CONN_"
VARIABLE_REMEDIES = {  # where a cluster shows the environment of containers
    "yarn": "A NodeManager serves it as launch_container.sh. Connections that a pipeline names are sent separately; "
    "other secrets may be settings of Spark or Hadoop (spark.hadoop.…). Nothing was written.",
    "k8s": "Name a Secret of Kubernetes: spark.kubernetes.executor.secretKeyRef.NAME=name:key. Nothing was written.",
}


@dataclass(frozen=True)
class SparkConnection:
    """The place of Spark: a master for spark-submit, or a Connect address."""

    master: str = "local[*]"
    remote: str | None = field(default=None, repr=False)  # may hold a token
    cluster: str | None = None  # the driver is to run there: see `driver.open_cluster`
    conf: dict[str, str] = field(default_factory=dict, repr=False)
    connection: str = field(default="", compare=False)  # its id


def parse_connection(
    conn_id: str,
    host: str | None,
    port: int | None,
    password: str | None,
    extra: Any,
    kind: str = "spark",
    login: str | None = None,
) -> SparkConnection:
    """Return the target that these fields of a connection describe. `kind`: its type.

    Raises:
        InvalidPipeline: they describe what cannot be done.
    """
    refuse_unknown_fields(conn_id, extra)
    master = parse_master(kind, host, port)
    if master.startswith("sc://"):
        ssl = "true" if str(extra.get("use_ssl", "")).lower() == "true" else None
        return SparkConnection(
            remote=_with_parameters(master, user_id=login, use_ssl=ssl, token=password), connection=conn_id
        )
    conf = parse_settings(conn_id, extra)
    cluster = _cluster(conn_id, master, extra, conf)
    refuse_login(conn_id, master, cluster)
    _refuse_stored_secrets(conn_id, conf, master if cluster else "")
    _refuse_visible_secrets(conn_id, conf, master)
    return SparkConnection(master, cluster=cluster, conf=conf, connection=conn_id)


def parse_variable(conn_id: str, text: str) -> SparkConnection:
    """Return the target of a connection as its variable has it: AIRFLOW_CONN_<ID>, as JSON or as URI.

    Raises:
        InvalidPipeline: it cannot be read, or describes what cannot be done.
    """
    try:
        fields = json.loads(text) if text.startswith("{") else _fields_of_uri(text)
        extra = fields.get("extra") or {}
        extra = json.loads(extra) if isinstance(extra, str) else extra
        port = int(fields["port"]) if fields.get("port") else None
    except (ValueError, TypeError, AttributeError):
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' cannot be read.",
            f"{CONNECTION_PREFIX}{conn_id.upper()} holds neither a connection's JSON nor its URI.",
            'Write {"conn_type": "spark", "host": "spark://…", "port": 7077}. Nothing was written.',
            code="spark-connection-invalid",
        ) from None
    kind = fields.get("conn_type") or "spark"
    return parse_connection(conn_id, fields.get("host"), port, fields.get("password"), extra, kind, fields.get("login"))


def _fields_of_uri(text: str) -> dict[str, Any]:
    """Return the fields of a connection that is written as a URI. Raises ValueError: it is none."""
    parts = urlsplit(text)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    return {
        "conn_type": parts.scheme,
        "host": unquote(parts.hostname or ""),
        "port": parts.port,
        "login": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "extra": query.get("__extra__", query),
    }


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
        code="spark-connection-invalid",
    )


def _rest_server(conn_id: str, master_url: SplitResult, extra: Mapping[str, Any]) -> str:
    """Return the address of the REST server of a standalone master."""
    scheme = extra.get("rest-scheme") or "http"
    if scheme not in ("http", "https"):
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has rest-scheme {scheme!r}.",
            todo="Set it to http or https. Nothing was written.",
            code="spark-connection-invalid",
        )
    if decode_keytab(str(extra.get(KEYTAB_FIELD) or "")):
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' holds a keytab.",
            "Its deploy mode is 'cluster', and a standalone master sends no files to the driver.",
            "Give a path on Spark's workers instead, or set 'deploy-mode' to client. Nothing was written.",
            code="keytab-unusable",
        )
    return f"{scheme}://{master_url.hostname}:{extra.get('rest-port') or REST_PORT}"


def _resource_managers(conn_id: str, extra: Mapping[str, Any]) -> str:
    """Return the addresses of YARN's ResourceManagers, separated by commas; http where a scheme is missing."""
    addresses = []
    for part in str(extra.get(MANAGER_FIELD) or "").split(","):
        if part.strip():
            addresses.append(_add_scheme(part.strip().rstrip("/"), "http"))
    if not addresses:
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has deploy mode 'cluster' for YARN, and no {MANAGER_FIELD}.",
            "The task finds and ends its driver at that address.",
            f'Add it to the extra: "{MANAGER_FIELD}": "http://host:8088" (of several, separate them by commas). '
            "Nothing was written.",
            code="spark-connection-invalid",
        )
    return ",".join(addresses)


def _api_server(master: str) -> str:
    """Return the address of Kubernetes' API; https where the master does not say otherwise, as Spark has it."""
    return _add_scheme(master.removeprefix("k8s://").rstrip("/"), "https")


def _add_scheme(address: str, scheme: str) -> str:
    """Return the address, with that scheme if it has none."""
    return address if "://" in address else f"{scheme}://{address}"


def _refuse_stored_secrets(conn_id: str, conf: Mapping[str, str], cluster: str) -> None:
    """Refuse the secrets that a cluster would keep where others can read them. `cluster`: nothing in client mode."""
    secrets = sorted(redaction.secret(conf))
    todo = SECRET_REMEDIES.get(cluster.partition(":")[0])
    if secrets and todo:
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has secrets in its conf: {', '.join(secrets)}.",
            "Its deploy mode is 'cluster': the cluster would store them where others can see them.",
            todo,
            code="secret-visible",
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
            code="secret-visible",
        )
    variables = []
    for key in conf:
        if key.startswith(ENVIRONMENT_PREFIXES) and (key in secrets or CONNECTION_PREFIX in key):
            variables.append(key)
    todo = VARIABLE_REMEDIES.get(master.partition(":")[0])
    if variables and todo:
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has secrets in its conf: {', '.join(sorted(variables))}.",
            "They become environment variables of a container, which the cluster shows to others.",
            todo,
            code="secret-visible",
        )


MANAGER_FIELD = "yarn_resourcemanager_webapp_address"
SETTINGS_BY_FIELD = {
    "queue": "spark.yarn.queue",
    "namespace": "spark.kubernetes.namespace",
    "principal": "spark.kerberos.principal",
}
KEYTAB_FIELD, KEYTAB_SETTING = "keytab", "spark.kerberos.keytab"
BINARY_FIELD, SPARK_SUBMIT = "spark-binary", "spark-submit"
KNOWN_FIELDS = {
    *SETTINGS_BY_FIELD,
    KEYTAB_FIELD,
    MANAGER_FIELD,
    BINARY_FIELD,
    "conf",
    "deploy-mode",
    "rest-port",
    "rest-scheme",
    "use_ssl",
}
PLACE_SETTINGS = ("spark.master", "spark.remote", "spark.submit.deployMode")  # have a field, and would win over it
# The type of a connection that is given as a URI is the scheme of its master.
SCHEMES_BY_TYPE = {"spark": "spark", "k8s": "k8s", "sc": "sc", "spark_connect": "sc"}


def parse_master(kind: str, host: str | None, port: int | None) -> str:
    """Return the master, or the Connect address, of a connection of that type."""
    if kind == "yarn":
        return "yarn"
    if not host:
        return "local[*]"
    scheme = SCHEMES_BY_TYPE.get(kind)
    has_scheme = host.startswith(f"{scheme}://") if kind == "k8s" else "://" in host
    if scheme and not has_scheme and (kind != "spark" or port):
        host = f"{scheme}://{host}"
    if port:
        return f"{host}:{port}"
    return host


def parse_settings(conn_id: str, extra: Mapping[str, Any]) -> dict[str, str]:
    """Return Spark's settings: those that have a field of their own, and those of `conf`, which win.

    Raises:
        InvalidPipeline: see `locate_keytab`; or `conf` is no object, or says where Spark is.
    """
    conf = extra.get("conf") or {}
    if not isinstance(conf, Mapping):
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has a 'conf' that is not a JSON object.",
            todo='Write {"spark.executor.memory": "2g", …}. Nothing was written.',
            code="spark-connection-invalid",
        )
    place_settings = sorted(set(conf) & set(PLACE_SETTINGS))
    if place_settings:
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has {', '.join(place_settings)} in its 'conf'.",
            "The connection's host and 'deploy-mode' say where Spark runs, and these settings would override them.",
            "Use the fields in place of the settings. Nothing was written.",
            code="spark-connection-invalid",
        )
    of_fields = {setting: str(extra[name]) for name, setting in SETTINGS_BY_FIELD.items() if extra.get(name)}
    if extra.get(KEYTAB_FIELD):
        of_fields[KEYTAB_SETTING] = locate_keytab(conn_id, str(extra[KEYTAB_FIELD]))
    return of_fields | {key: str(value) for key, value in conf.items()}


def refuse_unknown_fields(conn_id: str, extra: Mapping[str, Any]) -> None:
    """Refuse a field without effect: somebody has set it for a reason."""
    unknown_fields = sorted(set(extra) - KNOWN_FIELDS)
    if unknown_fields:
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has unknown fields: {', '.join(unknown_fields)}.",
            f"Known fields: {', '.join(sorted(KNOWN_FIELDS))}.",
            "Correct or remove them; Spark settings belong in 'conf'. Nothing was written.",
            code="spark-connection-invalid",
        )
    if extra.get(BINARY_FIELD) not in (None, "", SPARK_SUBMIT):
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has {BINARY_FIELD} {str(extra[BINARY_FIELD])!r}.",
            f"Onceonly always runs the {SPARK_SUBMIT} of the installed PySpark.",
            f"Remove '{BINARY_FIELD}', and install the cluster's version of pyspark. Nothing was written.",
            code="spark-connection-invalid",
        )


def refuse_login(conn_id: str, *addresses: str | None) -> None:
    """Refuse a password in an address, which arguments, logs and the report of a driver would show."""
    if any(redaction.CREDENTIALS.search(address or "") for address in addresses):
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has a login in an address of a cluster.",
            "Process arguments and logs would show it, and nothing would use it.",
            f"Remove what is before the '@' ({name_page('connections')}). Nothing was written.",
            code="secret-visible",
        )


KEYTAB_VERSION_BYTE = b"\x05"  # of every keytab: its format's version
_open_files = ExitStack()


def locate_keytab(conn_id: str, field: str) -> str:
    """Return the path of the keytab in that field, which spark-submit can be given.

    Raises:
        InvalidPipeline: it is neither a keytab nor an absolute path. The value of the field is not shown.
    """
    content = decode_keytab(field)
    if content:
        return _write_hidden_file(content)
    if field.startswith(("/", "file:/", "local:/")):
        return field
    raise InvalidPipeline(
        f"the Airflow connection '{conn_id}' has a keytab that cannot be used.",
        "It is neither the content of a keytab in base64 nor an absolute path.",
        "Use the output of `base64 etl.keytab`, or the path of the file on Airflow's workers. Nothing was written.",
        code="keytab-unusable",
    )


def decode_keytab(field: str) -> bytes:
    """Return the keytab that a field holds in base64; nothing where it is a path."""
    try:
        content = base64.b64decode("".join(field.split()), validate=True)
    except ValueError:
        return b""
    if not content.startswith(KEYTAB_VERSION_BYTE):
        return b""
    return content


@cache
def _write_hidden_file(content: bytes) -> str:
    """Return the path of a file that nobody else can read.

    It is for this process and those that it starts, and exists as long as this one lives.
    """
    name, inherited = _open_files.enter_context(hidden_file(content))
    if inherited:
        return f"/proc/{os.getpid()}/fd/{inherited[0]}"
    return name
