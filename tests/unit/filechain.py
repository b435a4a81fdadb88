"""Two pipelines, topic → folder → folder, of real files without Spark. The second one adds MORE to each number."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from unit.chain import Chain, Parts
from unit.decisions import numbers
from unit.lightfiles import LightFiles

from onceonly.checkpoint.model import Checkpoint, Handle, Transaction
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import FileSink
from onceonly.pipeline.sources import FileSource, Stored
from onceonly.sources.files import FileReader


class Numbers(LightFiles):
    def stage(self, txn: Transaction, rows: Iterable[Any]) -> Handle:
        return super().stage(txn, [{"value": number} for number in rows])


class FolderParts(Parts):
    def sink(self, pipeline: Pipeline, name: str) -> Any:
        config: Any = pipeline.sink(name)
        return Numbers(self.folder / config.path, name)

    def _source(self, config: Any) -> Any:
        if isinstance(config, FileSource):
            return FileReader(config, str(self.folder / config.path))
        return super()._source(config)

    def numbers(self, checkpoint: Checkpoint) -> list[int]:
        sources = self.sources(checkpoint.definition.pipeline)
        if checkpoint.pipeline == "first":
            return super().numbers(checkpoint)
        read = [(sources[range_.topic], self.folder / range_.topic, range_) for range_ in checkpoint.ranges]
        return [number for source, folder, range_ in read for number in numbers(source, folder, range_)]


class FileChain(Chain):
    def __init__(self, folder: Path, mode: str = "chained", **changes: Any) -> None:
        super().__init__(folder, mode, **changes)
        self.parts = FolderParts(folder)

    def pipeline(self, name: str, source: Any, path: str, **changes: Any) -> Pipeline:
        read = FileSource(source.path) if isinstance(source, Stored) else source
        made = {"name": name, "source": read, "transform": f"jobs:{name}", "mode": self.mode, **changes}
        return Pipeline(sinks=[FileSink(path, path, "json")], **made)

    def rows(self, path: str) -> list[int]:
        """As a plain reader of the folder finds them."""
        return LightFiles(self.parts.folder / path).values()

    def write(self, *numbers: int, path: str = "lake") -> None:
        """Somebody else puts a file into the folder between the two."""
        folder = self.parts.folder / path
        folder.mkdir(exist_ok=True)
        (folder / "theirs.json").write_text("".join(f'{{"value": {number}}}\n' for number in numbers))
