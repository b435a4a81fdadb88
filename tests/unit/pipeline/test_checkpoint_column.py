"""The column of a Delta sink that names the transaction of each row, in a pipeline's definition."""

from typing import Any

import pytest
from codes import raises

from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, Merge
from onceonly.pipeline.sources import KafkaSource


def pipeline(**options: Any) -> Pipeline:
    sink = DeltaSink("lake", "lake", **options)
    return Pipeline(name="flights", source=KafkaSource("flights"), transform="jobs:clean", sinks=[sink])


@pytest.mark.parametrize(
    ("options", "code", "why"),
    [
        ({"checkpoint_column": ""}, "option-invalid", "checkpoint_column=''"),
        ({"checkpoint_column": 5}, "option-invalid", "checkpoint_column=5"),
        ({"checkpoint_column": "by", "merge": Merge(["k"], ["at"])}, "options-conflict", "checkpoint_column and merge"),
        ({"checkpoint_column": "by", "partition_by": ["by"]}, "options-conflict", "partitioned by its"),
    ],
)
def test_a_column_that_cannot_be_is_refused(options: dict[str, Any], code: str, why: str) -> None:
    with raises(InvalidPipeline, code) as refused:
        pipeline(**options)
    assert why in str(refused.value)


def test_it_is_the_same_after_it_was_stored() -> None:
    named = pipeline(checkpoint_column="by")
    assert named.to_json()["sinks"][0]["checkpoint_column"] == "by"
    assert Pipeline.from_json(named.to_json()) == named


def test_without_it_a_definition_is_stored_as_before() -> None:
    assert "checkpoint_column" not in pipeline().to_json()["sinks"][0]
