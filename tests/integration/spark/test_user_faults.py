"""What users are told of their own mistakes: the same code in the process, through Spark Connect, and on a cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.programs import user_faults
from integration.programs.children import output, start, without_spark
from integration.services import spark_cluster
from patience import PATIENCE

from onceonly.dev.services.spark import TOKEN

ROOT = Path(__file__).parents[3]
PATHS = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests")))
WAYS = ["in process", "connect", pytest.param("cluster", marks=pytest.mark.heavy)]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module", params=WAYS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables that name it; without them Spark runs in the process."""
    if request.param == "cluster":
        for cluster in spark_cluster.cluster(tmp_path_factory.mktemp("cluster"), {"PYTHONPATH": PATHS}):
            yield {"SPARK_REMOTE": cluster.remote, TOKEN: cluster.driver.token() or ""}
    elif request.param == "connect":
        yield {"SPARK_REMOTE": request.getfixturevalue("spark_server")}
    else:
        yield {}


def test_each_mistake_has_its_code(server: dict[str, str], tmp_path: Path) -> None:
    jars = {"ONCEONLY_JARS": str(ROOT / ".jars"), "PYTHONPATH": PATHS, "ONCEONLY_HOME": str(tmp_path / "home")}
    child = start(user_faults.__file__, str(tmp_path), env={**without_spark(os.environ), **jars, **server})
    printed = output(child, 4 * PATIENCE)
    told = [json.loads(line[6:]) for line in printed.splitlines() if line.startswith("FAULT ")]
    assert [fault["name"] for fault in told] == list(user_faults.FAULTS), printed[-5000:]
    for fault in told:
        assert fault["code"] in user_faults.FAULTS[fault["name"]][0].split(" or "), fault
        assert len(fault["text"]) < 800 and "\tat " not in fault["text"], fault
