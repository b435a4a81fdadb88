"""Reading a folder of a FileSink by its manifests: of each checkpoint all files or none.

for path in onceonly.manifests.files("lake/delays"): ...
onceonly.manifests.dataset("lake/delays").to_table()

An hdfs:// folder is read over HTTP, as the sink writes it: see `onceonly.webhdfs`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from onceonly.settings import Settings

if TYPE_CHECKING:
    from onceonly.webhdfs import Cluster

FOLDER = "_onceonly"
AT_ONCE = 8  # requests, or files written to disk, side by side


def files(folder: str | Path) -> list[Any]:
    """The files of every checkpoint that is published whole, in order of their names: paths; on HDFS its URIs.

    Raises:
        FileNotFoundError: no such folder.
        OSError: HDFS does not answer.
    """
    if on_hdfs := _hdfs(folder):
        cluster, root = on_hdfs
        return sorted(f"{root}/{path}" for path in _listed(_manifests(cluster, root)))
    local = Path(folder)
    if not local.is_dir():
        raise FileNotFoundError(f"{local} is no folder")
    found = {path.name: json.loads(path.read_text()) for path in (local / FOLDER).glob("*.manifest")}
    return sorted(local / path for path in _listed(found))


def dataset(folder: str | Path) -> Any:
    """A pyarrow dataset of them, partition folders as columns. Not for Avro, which pyarrow does not read."""
    import pyarrow.dataset as ds

    found = files(folder)
    kinds = {PurePosixPath(path).suffix for path in found} or {".parquet"}
    kind = {".parquet": ds.ParquetFileFormat, ".jsonl": ds.JsonFileFormat, ".csv": ds.CsvFileFormat}[kinds.pop()]()
    if on_hdfs := _hdfs(folder):
        cluster, root = on_hdfs
        return cluster.dataset([cluster.path(uri) for uri in found], cluster.path(root), kind)
    return ds.dataset(found, format=kind, partitioning="hive", partition_base_dir=str(folder))


def _listed(manifests: Mapping[str, Any]) -> list[str]:
    """What they list, but for those that others have taken the place of."""
    replaced = {name for manifest in manifests.values() for name in manifest.get("replaces", [])}
    current = (manifest for name, manifest in manifests.items() if name not in replaced)
    return [file["path"] for manifest in current for file in manifest["files"]]


def _hdfs(folder: str | Path) -> tuple[Cluster, str] | None:
    """The cluster and the folder's URI; None: the folder is local."""
    if not str(folder).startswith("hdfs://"):
        return None
    from onceonly.webhdfs import Cluster, split

    cluster = Cluster(str(folder), Settings.from_env().webhdfs)
    return cluster, cluster.root + split(str(folder))[1]


def _manifests(cluster: Cluster, root: str) -> dict[str, Any]:
    fs = cluster.fs
    if fs.info(cluster.path(root))["type"] != "directory":
        raise FileNotFoundError(f"{root} is no folder")
    try:
        found = [path for path in fs.ls(cluster.path(f"{root}/{FOLDER}"), detail=False) if path.endswith(".manifest")]
    except FileNotFoundError:
        return {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        contents = list(pool.map(fs.cat_file, found))
    return {path.rpartition("/")[2]: json.loads(text) for path, text in zip(found, contents, strict=True)}
