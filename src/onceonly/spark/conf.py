"""What every Spark session of ours needs, wherever it runs; no import of Spark itself."""

from __future__ import annotations

import os

from onceonly.settings import Settings

# The options of a Kafka connection are part of a plan, and a plan is shown: in explain, the event log and the UI.
# Redacted to the end of the line: what follows `LoginModule required` and `….password`; and private keys.
REDACTION = {
    "spark.sql.redaction.options.regex": r"(?i)url|jaas|keystore[.]key",
    "spark.sql.redaction.string.regex": r"(?i)LoginModule\s+required[^\n]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\w+/=\\\s:,-]*"
    r'|[.]password"?\s*(?:value:|->|=|:)[^\n]*',
}
TOKEN_FILE = "services/spark/token"  # of the embedded Connect server, below the home; mode 600
# What points a process to a Connect server, and would win over a master.
ELSEWHERE = {"SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE"}
CONF = {
    **REDACTION,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",  # staged tables have tiny logs; the default is 50 tasks each
    "spark.sql.session.timeZone": "UTC",
}


def stay_here() -> None:
    """This process's Spark is that of a master, whatever its environment says."""
    for name in ELSEWHERE:
        os.environ.pop(name, None)


def conf(settings: Settings) -> dict[str, str]:
    """For a session that Onceonly starts itself, in this process or by spark-submit."""
    jars = settings.spark_jars()
    quiet = {"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
    place = {"spark.sql.warehouse.dir": str(settings.home / "warehouse")}
    return CONF | quiet | place | ({"spark.jars": ",".join(jars)} if jars else {})
