"""The fields of an Airflow connection to Spark, as Airflow's own Spark provider has its users fill them in.

Source: apache-airflow-providers-apache-spark, `SparkSubmitHook` and `SparkConnectHook`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onceonly import redaction
from onceonly.errors import InvalidPipeline
from onceonly.runtime import keytab

MANAGER = "yarn_resourcemanager_webapp_address"
SETTINGS = {
    "queue": "spark.yarn.queue",
    "namespace": "spark.kubernetes.namespace",
    "principal": "spark.kerberos.principal",
}
KEYTAB, KEYTAB_SETTING = "keytab", "spark.kerberos.keytab"
BINARY, SPARK_SUBMIT = "spark-binary", "spark-submit"
FIELDS = {*SETTINGS, KEYTAB, MANAGER, BINARY, "conf", "deploy-mode", "rest-port", "rest-scheme", "use_ssl"}
PLACE_SETTINGS = ("spark.master", "spark.remote", "spark.submit.deployMode")  # have a field, and would win over it
# The type of a connection that is given as a URI is the scheme of its master.
SCHEMES = {"spark": "spark", "k8s": "k8s", "sc": "sc", "spark_connect": "sc"}


def master(kind: str, host: str | None, port: int | None) -> str:
    """Return the master, or the Connect address, of a connection of that type."""
    if kind == "yarn":
        return "yarn"
    if not host:
        return "local[*]"
    scheme = SCHEMES.get(kind)
    has_scheme = host.startswith(f"{scheme}://") if kind == "k8s" else "://" in host
    if scheme and not has_scheme and (kind != "spark" or port):
        host = f"{scheme}://{host}"
    return f"{host}:{port}" if port else host


def settings(conn_id: str, extra: Mapping[str, Any]) -> dict[str, str]:
    """Return Spark's settings: those that have a field of their own, and those of `conf`, which win.

    Raises:
        InvalidPipeline: see `keytab.path`; or `conf` is no object, or says where Spark is.
    """
    conf = extra.get("conf") or {}
    if not isinstance(conf, Mapping):
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has a 'conf' that is not a JSON object.",
            todo='Write {"spark.executor.memory": "2g", …}. Nothing was written.',
        )
    place_settings = sorted(set(conf) & set(PLACE_SETTINGS))
    if place_settings:
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has {', '.join(place_settings)} in its 'conf'.",
            "The connection's host and 'deploy-mode' say where Spark runs, and these settings would override them.",
            "Use the fields in place of the settings. Nothing was written.",
        )
    of_fields = {setting: str(extra[name]) for name, setting in SETTINGS.items() if extra.get(name)}
    if extra.get(KEYTAB):
        of_fields[KEYTAB_SETTING] = keytab.path(conn_id, str(extra[KEYTAB]))
    return of_fields | {key: str(value) for key, value in conf.items()}


def refuse_unused(conn_id: str, extra: Mapping[str, Any]) -> None:
    """Refuse a field without effect: somebody has set it for a reason."""
    unknown_fields = sorted(set(extra) - FIELDS)
    if unknown_fields:
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has unknown fields: {', '.join(unknown_fields)}.",
            f"Known fields: {', '.join(sorted(FIELDS))}.",
            "Correct or remove them; Spark settings belong in 'conf'. Nothing was written.",
        )
    if extra.get(BINARY) not in (None, "", SPARK_SUBMIT):
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has {BINARY} {str(extra[BINARY])!r}.",
            f"Onceonly always runs the {SPARK_SUBMIT} of the installed PySpark.",
            f"Remove '{BINARY}', and install the cluster's version of pyspark. Nothing was written.",
        )


def refuse_login(conn_id: str, *addresses: str | None) -> None:
    """Refuse a password in an address, which arguments, logs and the report of a driver would show."""
    if any(redaction.CREDENTIALS.search(address or "") for address in addresses):
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has a login in an address of a cluster.",
            "Process arguments and logs would show it, and nothing would use it.",
            "Remove what is before the '@' (docs/connections.md). Nothing was written.",
        )
