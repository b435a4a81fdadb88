"""As mortal_merge.py, of what Debezium has written. Run by test_changes_crash.py."""

from __future__ import annotations

import sys

from integration.projects.project import Project
from integration.victims import mortal_merge

from onceonly.debezium import DELETED, ORDER
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, Merge
from onceonly.pipeline.sources import KafkaSource


def pipeline(project: Project) -> Pipeline:
    transforms = f"transforms_{project.topic}"
    return Pipeline(
        name="customers",
        source=KafkaSource(topic=project.topic, max_records=70),
        transform=f"{transforms}:rows",
        sinks=[DeltaSink("merged", path="lake/customers", merge=Merge(keys=["id"], order_by=ORDER, deletes=DELETED))],
    )


if __name__ == "__main__":
    assert len(sys.argv) == 4
    mortal_merge.pipeline = pipeline
    mortal_merge.main()
