"""An error of a user's transform names the line of the user's file, through Spark Connect as in the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from integration.programs.children import without_spark
from integration.projects.project import Project, make_project, produce
from patience import PATIENCE

pytestmark = [pytest.mark.integration]

TRANSFORMS = """

def typo(batch):
    from pyspark.sql import functions as F
    return batch.select(
        F.col("ofset"))  # typo

def raises(batch):
    raise KeyError("no such carrier")  # raises

def in_a_worker(batch):
    from pyspark.sql.functions import udf
    @udf("bigint")
    def divided(n):
        return 1 // (n - n)  # in_a_worker
    return batch.selectExpr("CAST(partition AS BIGINT) AS n", "'a' AS part").withColumn("n", divided("n"))
"""


PIPELINE = """
from onceonly import DeltaSink, KafkaSource, Pipeline

wrong = Pipeline(
    name="wrong",
    source=KafkaSource("{topic}"),
    transform="transforms_{topic}:{name}",
    sinks=[DeltaSink("out", path="lake/out")],
)
"""


@pytest.fixture(scope="module", params=["connect", "in process"])
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, broker: str) -> Project:
    server = request.getfixturevalue("spark_server") if request.param == "connect" else ""
    project = make_project(
        tmp_path_factory.mktemp("site"), broker, server, f"error_site_{request.param.replace(' ', '_')}"
    )
    module = _module(project)
    module.write_text(module.read_text() + TRANSFORMS)
    produce(project, range(3))
    return project


def _module(project: Project) -> Path:
    return project.folder / f"transforms_{project.topic}.py"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("typo", "AnalysisException: [UNRESOLVED_COLUMN"),
        ("raises", "KeyError: 'no such carrier'"),
        ("in_a_worker", "PythonException: ZeroDivisionError: "),
    ],
)
def test_an_error_names_the_users_line_and_little_else(project: Project, name: str, what: str) -> None:
    file = _module(project)
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if text.endswith(f"# {name}"))
    (project.folder / "pipelines.py").write_text(PIPELINE.format(topic=project.topic, name=name))
    jars = {"ONCEONLY_JARS": str(Path(__file__).parents[3] / ".jars")}
    server = {"SPARK_REMOTE": project.spark} if project.spark else {}
    env = without_spark(os.environ) | project.env() | jars | server
    run = [sys.executable, "-c", "from onceonly.cli import main; main()", "run", "pipelines.py:wrong"]
    done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=PATIENCE, cwd=project.folder)
    assert done.returncode == 1, done.stderr
    ours = done.stderr[done.stderr.index("could not be staged.") :].partition("retry the stage: ")[
        0
    ]  # then Spark's log
    assert what in ours
    assert f"It comes from {file.name}, line {line}." in ours
    assert '"level": "ERROR"' not in done.stderr  # what PySpark logs as JSON
    assert len(ours) < 1_000
