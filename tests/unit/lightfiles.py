"""A file sink that stages without Spark, so that tests of what is decided about it need none."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.checkpoint.transaction_names import manifest_path
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import FileSink
from onceonly.sinks.files import stage
from onceonly.sinks.files.handle import staging_of
from onceonly.sinks.files.sink import FileWriter
from onceonly.storage.local import LocalFiles
from onceonly.testing.fakes import FakeParts

VALUE = {"name": "value", "type": "long", "nullable": True, "metadata": {}}


def schema_of(row: Mapping[str, int]) -> dict[str, Any]:
    return {"type": "struct", "fields": [{**VALUE, "name": name} for name in row]}


SCHEMA = schema_of({"value": 0})


class LightFiles(FileWriter):
    """JSON lines, one file per checkpoint, in a partition folder if one is given."""

    def __init__(self, folder: Path, name: str = "lake", partition: str = "") -> None:
        super().__init__(FileSink(name, name, "json"), str(folder))
        self.folder, self.partition = folder, partition

    def stage(self, txn: Transaction, rows: Iterable[dict[str, Any]]) -> Handle:
        given = list(rows)
        folder, lines = Path(staging_of(str(self.folder)), txn.name, "data"), [json.dumps(row) for row in given]
        place = folder / self.partition
        place.mkdir(parents=True)
        (place / "part-00000.jsonl").write_text("".join(f"{line}\n" for line in lines))
        files = stage.prepare_files(self.config, txn, LocalFiles(), str(self.folder), str(folder), len(lines))
        return {
            **{"kind": "files", "target": str(self.folder), "format": "json", "txn": txn.name},
            **{"folder": str(folder), "manifest": manifest_path(txn), "rows": len(lines), "bytes": 1},
            "files": [file.to_json() for file in files],
            "partition_by": [],
            "schema": schema_of(given[0]) if given else SCHEMA,
        }

    def values(self) -> list[int]:
        """Of the field `value`, as a plain reader of the folder finds it."""
        lines = (line for path in self.folder.rglob("*.jsonl") for line in path.read_text().splitlines())
        return sorted(json.loads(line)["value"] for line in lines)


class FileParts(FakeParts):
    """As fake parts, with every sink a folder of files."""

    def sink(self, pipeline: Pipeline, name: str) -> Any:
        return LightFiles(self.folder / f"{name}-target", name)
