"""Reading a FileSink's folder by its manifests: all files of a checkpoint or none.

for path in onceonly.storage.manifests.files("lake/delays"): ...
onceonly.storage.manifests.dataset("lake/delays").to_table()

An hdfs:// folder is read over HTTP, as the sink writes it (`onceonly.storage.webhdfs`), and one of an object store
by the client that publishes there (`onceonly.storage.file_systems`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from onceonly.storage.file_systems import open_file_system, read_listed
from onceonly.storage.folders import arrow_file_system
from onceonly.storage.own_paths import MANIFESTS
from onceonly.storage.paths import split_hdfs_uri

if TYPE_CHECKING:
    from onceonly.storage.interface import FileSystem
    from onceonly.storage.webhdfs import WebHdfsCluster

__all__ = ["dataset", "files"]

WEBHDFS_ADDRESS = "ONCEONLY_WEBHDFS"  # the variable with the address of the NameNode


def files(folder: str | Path) -> list[Any]:
    """Return the files of every completely published checkpoint, in order of their names.

    They are paths, or URIs of other storage.

    Raises:
        FileNotFoundError: no such folder.
        OSError: the storage does not answer.
    """
    on_hdfs, on_store = _find_on_hdfs(folder), _find_on_store(folder)
    if on_hdfs:
        root, manifests = on_hdfs[1], _read_from_hdfs(*on_hdfs)
    elif on_store:
        root, manifests = on_store[1], _read_from_store(*on_store)
    else:
        local = Path(folder)
        return sorted(local / path for path in _select_current_paths(_read_from_disk(local)))
    return sorted(f"{root}/{path}" for path in _select_current_paths(manifests))


def dataset(folder: str | Path) -> Any:
    """Return a pyarrow dataset of these files, with partition folders as columns.

    Not for Avro, which pyarrow cannot read.
    """
    import pyarrow.dataset as ds

    uris = files(folder)
    suffixes = {PurePosixPath(uri).suffix for uri in uris} or {".parquet"}
    formats = {".parquet": ds.ParquetFileFormat, ".jsonl": ds.JsonFileFormat, ".csv": ds.CsvFileFormat}
    format = formats[suffixes.pop()]()
    on_hdfs, on_store = _find_on_hdfs(folder), _find_on_store(folder)
    if on_hdfs:
        cluster, root = on_hdfs
        return cluster.dataset([cluster.path(uri) for uri in uris], cluster.path(root), format)
    if on_store:
        fs, base = arrow_file_system(on_store[1])
        paths = [uri.partition("://")[2] for uri in uris]
        return ds.dataset(paths, format=format, filesystem=fs, partitioning="hive", partition_base_dir=base)
    return ds.dataset(uris, format=format, partitioning="hive", partition_base_dir=str(folder))


def _read_manifests(list_names: Callable[[], Iterable[str]], read: Callable[[str], str | bytes]) -> dict[str, Any]:
    """Return the content of every manifest by its name.

    Args:
        list_names: lists the folder of the manifests.
        read: reads one by its name.
    """

    def list_manifests() -> list[str]:
        return [name for name in list_names() if name.endswith(".manifest")]

    return read_listed(list_manifests, lambda name: json.loads(read(name)))


def _select_current_paths(manifests: Mapping[str, Any]) -> list[str]:
    """Return the files of all manifests that no other one replaces, relative to the folder."""
    replaced: set[str] = set()
    for manifest in manifests.values():
        replaced.update(manifest.get("replaces", []))
    paths: list[str] = []
    for name, manifest in manifests.items():
        if name not in replaced:
            paths += [file["path"] for file in manifest["files"]]
    return paths


def _read_from_disk(folder: Path) -> dict[str, Any]:
    """Return the manifests of a local folder. Raises FileNotFoundError: there is no such folder."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder")
    place = folder / MANIFESTS

    def list_names() -> list[str]:
        return os.listdir(place) if place.is_dir() else []

    return _read_manifests(list_names, lambda name: (place / name).read_text())


def _find_on_hdfs(folder: str | Path) -> tuple[WebHdfsCluster, str] | None:
    """Return the cluster and the folder's URI; None for a folder that is not on HDFS."""
    if not str(folder).startswith("hdfs://"):
        return None
    from onceonly.storage.webhdfs import WebHdfsCluster

    cluster = WebHdfsCluster(str(folder), os.environ.get(WEBHDFS_ADDRESS) or None)
    return cluster, cluster.root + split_hdfs_uri(str(folder))[1]


def _read_from_hdfs(cluster: WebHdfsCluster, root: str) -> dict[str, Any]:
    """Return the manifests of a folder on HDFS. Raises FileNotFoundError: there is no such folder."""
    fs = cluster.fs
    if fs.info(cluster.path(root))["type"] != "directory":
        raise FileNotFoundError(f"{root} is not a folder")
    place = cluster.path(f"{root}/{MANIFESTS}")

    def list_names() -> list[str]:
        try:
            return [path.rpartition("/")[2] for path in fs.ls(place, detail=False)]
        except FileNotFoundError:
            return []

    return _read_manifests(list_names, lambda name: fs.cat_file(f"{place}/{name}"))


def _find_on_store(folder: str | Path) -> tuple[FileSystem, str] | None:
    """Return the file system and the URI of a folder on an object store; None for another folder."""
    if "://" not in str(folder) or str(folder).startswith(("file:", "hdfs:")):
        return None
    return open_file_system(str(folder))


def _read_from_store(file_system: FileSystem, root: str) -> dict[str, Any]:
    """Return the manifests of a folder on an object store. Raises FileNotFoundError: there is no such folder."""
    if not file_system.list_names(root):
        raise FileNotFoundError(f"{root} is not a folder")
    place = f"{root}/{MANIFESTS}"
    return _read_manifests(
        lambda: file_system.list_names(place),
        lambda name: file_system.read(f"{place}/{name}"),
    )
