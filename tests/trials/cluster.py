"""make demo-cluster: the demo of `make demo` with everything on S3, and each stage a driver on YARN (cluster mode).

One run's driver is killed while it writes, one run's commit after its decision; then the table on S3 and the topic are
compared with the CSV. It needs versitygw and the jars of S3 (`onceonly jars fetch s3`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from integration.services import s3, yarn
from integration.services.s3 import S3
from integration.services.store_server import BUCKET, KEY
from rich.console import Console

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.delta import txn_identifiers
from onceonly.dev.demo import flights
from onceonly.dev.demo.load import LATE_TOPIC, load
from onceonly.dev.demo.proof import prove, prove_late
from onceonly.dev.demo.run import LATE_SCHEMA, MONTH, PIPELINE, RECOVERY, Demo
from onceonly.dev.demo.standalone import Standalone, wait_until
from onceonly.dev.services import Services, machine
from onceonly.settings import Settings
from onceonly.spark import jars
from onceonly.statetable import location
from onceonly.statetable.table import StateTable
from trials.airflow import PATH

TABLE = "flights"
DAGS = Path(__file__).with_name("cluster_dags")


@dataclass
class OnCluster(Demo):
    """The demo's steps, whose Spark and storage are elsewhere."""

    server: S3
    cluster: yarn.Yarn

    limit = 600.0  # each stage starts a driver and an executor

    def start(self) -> None:
        """Broker, flights, YARN, Airflow."""
        with self._step("broker, S3, and a state table there"):
            broker = self.services.up().bootstrap
            location.make(self.settings.state)
        with self._step(f"flights of {MONTH} to topic 'flights' on {broker}"):
            load(self.settings, "flights", flights.month_period(MONTH))
        with self._step("YARN: a ResourceManager and a NodeManager"):
            self.cluster.up()
        with self._step(f"Airflow at {self.airflow.url}"):
            self.airflow.start(self._environment())
            for dag in (PIPELINE, RECOVERY):
                wait_until(lambda dag=dag: self.airflow.unpause(dag), f"Airflow has parsed DAG {dag}", 120)  # type: ignore[misc]

    def holds(self) -> bool:
        """Print the checkpoints and the proof; returns whether the table and the topic equal the CSV."""
        self.console.print(self._checkpoints())
        month, schema = flights.month_period(MONTH), self.settings.project / LATE_SCHEMA
        found = {
            self.server.uri(TABLE): prove(self.server.uri(TABLE), month),
            LATE_TOPIC: prove_late(self.settings.brokers(None), LATE_TOPIC, schema, month),
        }
        for place, proof in found.items():
            self.console.print(f"{place}: {proof.expected:,} in the CSV, {proof.missing} missing, {proof.extra} extra")
        return all(proof.holds for proof in found.values())

    def _find_staging_checkpoint(self) -> Checkpoint | None:
        latest = StateTable(self.settings.state).view(PIPELINE).latest
        if latest is None or latest.state is not State.PLANNED or not latest.claims:
            return None
        staged = self.server.data / BUCKET / TABLE / (txn_identifiers.STAGED_PREFIX + latest.transaction(TABLE).name)
        return latest if staged.exists() else None

    def _environment(self) -> dict[str, str]:
        driver = {"PYTHONPATH": os.pathsep.join([PATH, str(self.settings.project)])}
        placed = {
            f"{prefix}.{name}": value
            for prefix in ("spark.yarn.appMasterEnv", "spark.executorEnv")
            for name, value in driver.items()
        }
        return {
            "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
            "AIRFLOW_CONN_SPARK": self.cluster.connection(conf=placed),
            "AIRFLOW_CONN_LAKE": connection(self.server),
            "HADOOP_CONF_DIR": str(self.cluster.conf),
            "ONCEONLY_AWS_CONNECTION": "lake",
            "ONCEONLY_NOTIFY": "onceonly.dev.demo:at_decision",
            "ONCEONLY_TRANSFORMS": "onceonly.dev.demo",
            **{name: os.environ[name] for name in ("ONCEONLY_STATE", "ONCEONLY_SPOOL", "ONCEONLY_DOCS")},
        }


def connection(server: S3) -> str:
    """Of Airflow: its keys reach no argument, and no environment that YARN shows."""
    extra = {"region_name": "us-east-1", "endpoint_url": f"http://127.0.0.1:{server.port}"}
    return json.dumps({"conn_type": "aws", "login": KEY, "password": server.secret, "extra": extra})


@contextmanager
def demo(folder: Path) -> Iterator[OnCluster]:
    """Its services end with the block."""
    with s3.server() as server:
        os.environ.update(server.environment)  # the pages use it, too; drivers have the connection
        os.environ.update({f"ONCEONLY_{name.upper()}": server.uri(name) for name in ("state", "spool", "docs")})
        os.environ["ONCEONLY_HOME"] = str(folder)
        settings = replace(Settings.from_env(), bootstrap=None)
        services, cluster = Services(folder, port=0), yarn.yarn(folder)
        airflow = Standalone(settings, machine.prefer_port(8080))
        made = OnCluster(settings, services, airflow, Console(), server, cluster)
        try:
            yield made
        finally:
            for end in (airflow.stop, cluster.down, services.down):
                end()


def main() -> int:
    if s3.BINARY is None:
        raise SystemExit(s3.MISSING)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it has started ends with it
    home = Settings.from_env()
    jars.fetch(home.jars, ("s3", "hdfs"), jars.SETTINGS)
    with TemporaryDirectory(prefix="onceonly-cluster-") as folder, demo(Path(folder)) as shown:
        shown.start()
        shown.pipeline()
        return 0 if shown.holds() else 1


if __name__ == "__main__":
    sys.exit(main())
