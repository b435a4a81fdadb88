"""The probe of a storage from executors of a cluster, which are other processes than the one that asks for it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.services import spark_cluster
from integration.services.s3 import S3
from integration.services.spark_cluster import FIRE, SparkCluster
from interruptible import CLI

from onceonly.dev.services.spark import TOKEN
from onceonly.probe import spark_tasks
from onceonly.storage.objects import Objects

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[3]
PATHS = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests")))
CALM = {"spark.speculation": "false", "spark.dynamicAllocation.minExecutors": "0"}


@pytest.fixture(params=["false", "true"], ids=["fixed", "dynamic"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SparkCluster]:
    monkeypatch.setattr(spark_cluster, "FIRE", {**FIRE, **CALM, spark_tasks.DYNAMIC_ALLOCATION: request.param})
    yield from spark_cluster.cluster(tmp_path_factory.mktemp("cluster"), {"PYTHONPATH": PATHS})


def test_executors_probe_as_processes_do(
    cluster: SparkCluster, request: pytest.FixtureRequest, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path))
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    uri = s3.uri("executors")
    options = ["--from", "spark", "--workers", "6", "--seconds", "2", "--json"]
    command = [*CLI, "probe", uri, *options]
    services = {"SPARK_REMOTE": cluster.remote, TOKEN: cluster.driver.token() or ""}
    result = subprocess.run(command, env={**os.environ, **services}, capture_output=True, text=True, check=False)
    print(result.stdout, result.stderr)
    report = json.loads(result.stdout)
    assert (result.returncode, report["verdict"]) == (0, "kept")
    is_one_task = report["from"] == "6 threads in 1 task of Spark"
    assert is_one_task == ("dynamic" in request.node.name), report["from"]
    assert [entry.path for entry in Objects(uri).list_objects()] == []
