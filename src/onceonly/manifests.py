"""Reading a folder of a FileSink by its manifests: of each checkpoint all files or none.

for path in onceonly.manifests.files("lake/delays"): ...
onceonly.manifests.dataset("lake/delays").to_table()
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = "_onceonly"


def files(folder: str | Path) -> list[Path]:
    """The files of every checkpoint that is published whole, in order of their names.

    Raises:
        FileNotFoundError: no such folder.
    """
    root = Path(folder)
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is no folder")
    manifests = {path.name: json.loads(path.read_text()) for path in (root / FOLDER).glob("*.manifest")}
    replaced = {name for manifest in manifests.values() for name in manifest.get("replaces", [])}
    current = (manifest for name, manifest in manifests.items() if name not in replaced)
    return sorted(root / file["path"] for manifest in current for file in manifest["files"])


def dataset(folder: str | Path) -> Any:
    """A pyarrow dataset of them, partition folders as columns. Not for Avro, which pyarrow does not read."""
    import pyarrow.dataset as ds

    found = files(folder)
    kinds = {path.suffix for path in found} or {".parquet"}
    kind = {".parquet": "parquet", ".jsonl": "json", ".csv": "csv"}[kinds.pop()]
    return ds.dataset(found, format=kind, partitioning="hive", partition_base_dir=str(folder))
