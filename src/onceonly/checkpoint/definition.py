"""The definition of a pipeline, as the rows of the state table store it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from onceonly.pipeline.definition import Pipeline


@dataclass(frozen=True)
class Definition:
    """A stored definition, and the pipeline that it describes.

    Only `pipeline` needs the packages of its sinks: all else can be read where they are not installed.

    Args:
        json: as a row holds it. It never changes: a row with another definition has another object.
    """

    json: Mapping[str, Any]

    @cached_property
    def pipeline(self) -> Pipeline:
        """The pipeline, parsed when it is asked for first.

        Raises:
            InvalidPipeline: a kind or field that this version does not know, or a value of another type.
        """
        return Pipeline.from_json(self.json)

    @property
    def sink_names(self) -> tuple[str, ...]:
        return tuple(sink["name"] for sink in self.json["sinks"])

    @property
    def gate(self) -> Mapping[str, Any] | None:
        """The gate as it is stored; None if it has none."""
        return self.json.get("gate")

    @property
    def upstreams(self) -> tuple[str, ...]:
        """The names of the pipelines whose tables it reads up to their checkpoints."""
        return tuple(self.json.get("after", ()))
