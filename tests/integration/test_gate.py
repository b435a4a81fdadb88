"""The gate on real Spark, Delta, Great Expectations and Airflow: what it fails is nowhere, and can be looked at."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from integration.project import Project, make_project, produce

from onceonly import liveness, wiring
from onceonly.checkpoint import Checkpoint
from onceonly.coordinator import Coordinator
from onceonly.errors import GateFailed

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SUITE = {
    "name": "numbers",
    "expectations": [
        {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "part"}},
        {"type": "expect_column_values_to_be_between", "kwargs": {"column": "n", "max_value": 99}},
        {"type": "expect_column_max_to_be_between", "kwargs": {"column": "n", "max_value": 30}, "severity": "warning"},
    ],
}


@pytest.fixture
def project(tmp_path: Path, broker: str, spark_server: str) -> Project:
    made = make_project(tmp_path, broker, spark_server, f"gate_{uuid.uuid4().hex[:8]}")
    (tmp_path / "numbers.expectations.json").write_text(json.dumps(SUITE))
    made.set_gate(suites="numbers.expectations.json")
    return made


def staged(project: Project) -> tuple[Coordinator, Checkpoint]:
    through, pipeline = wiring.coordinator(project.parts), project.pipeline()
    planned = through.plan(pipeline, liveness.this_process(), liveness.alive).checkpoint
    assert planned is not None
    return through, wiring.stage(project.parts, through, pipeline.name, planned.epoch, None)


@pytest.mark.parametrize("path", ["in process", "spark"])
def test_bad_rows_are_told_and_not_published(project: Project, path: str) -> None:
    project.set_gate(suites="numbers.expectations.json", in_process_rows=0 if path == "spark" else 100)
    produce(project, [1, 2, 50, 100])
    through, checkpoint = staged(project)
    judged = through.gate(checkpoint.pipeline, checkpoint.epoch, "test")
    assert judged.verdict is not None
    seen = judged.verdict["sinks"]["numbers"]
    print(json.dumps(judged.verdict, indent=1))
    assert (judged.verdict["outcome"], seen["rows"], seen["path"]) == ("failed", 4, path)
    assert [(check["ok"], check["severity"]) for check in seen["checks"]] == [
        (True, "critical"),
        (False, "critical"),
        (False, "warning"),
    ]
    assert seen["checks"][1]["observed"] == "1 of 4 rows"
    pages = list(Path(urlsplit(judged.verdict["docs"]).path).parent.rglob("*.html"))
    assert any("less than or equal to" in page.read_text() for page in pages)
    with pytest.raises(GateFailed, match="expect_column_values_to_be_between"):
        through.commit(checkpoint.pipeline, checkpoint.epoch)
    assert not project.published()
