"""Reading a FileSink's folder by its manifests: all files of a checkpoint or none.

for path in onceonly.manifests.files("lake/delays"): ...
onceonly.manifests.dataset("lake/delays").to_table()

An hdfs:// folder is read over HTTP, as the sink writes it (`onceonly.filesystems.webhdfs`), and one of an object store
by the client that publishes there (`onceonly.filesystems.places`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from onceonly.filesystems.confined import MANIFESTS as FOLDER
from onceonly.filesystems.listing import every
from onceonly.settings import Settings

if TYPE_CHECKING:
    from onceonly.filesystems.interface import FileSystem
    from onceonly.filesystems.webhdfs import Cluster


def files(folder: str | Path) -> list[Any]:
    """The files of every completely published checkpoint, in order of their names: paths, or URIs of other storage.

    Raises:
        FileNotFoundError: no such folder.
        OSError: the storage does not answer.
    """
    if on_hdfs := _hdfs(folder):
        cluster, root = on_hdfs
        return sorted(f"{root}/{path}" for path in _listed(_manifests(cluster, root)))
    if stored := _stored(folder):
        on, root = stored
        return sorted(f"{root}/{path}" for path in _listed(_on_store(on, root)))
    local = Path(folder)
    if not local.is_dir():
        raise FileNotFoundError(f"{local} is not a folder")
    place = local / FOLDER
    found = _all(lambda: [path.name for path in place.glob("*.manifest")], lambda name: (place / name).read_text())
    return sorted(local / path for path in _listed(found))


def dataset(folder: str | Path) -> Any:
    """A pyarrow dataset of these files, with partition folders as columns. Not for Avro, which pyarrow cannot read."""
    import pyarrow.dataset as ds

    found = files(folder)
    kinds = {PurePosixPath(path).suffix for path in found} or {".parquet"}
    kind = {".parquet": ds.ParquetFileFormat, ".jsonl": ds.JsonFileFormat, ".csv": ds.CsvFileFormat}[kinds.pop()]()
    if on_hdfs := _hdfs(folder):
        cluster, root = on_hdfs
        return cluster.dataset([cluster.path(uri) for uri in found], cluster.path(root), kind)
    if stored := _stored(folder):
        from onceonly.filesystems import places

        fs, base = places.arrow(stored[1])
        paths = [uri.partition("://")[2] for uri in found]
        return ds.dataset(paths, format=kind, filesystem=fs, partitioning="hive", partition_base_dir=base)
    return ds.dataset(found, format=kind, partitioning="hive", partition_base_dir=str(folder))


def _all(names: Callable[[], Iterable[str]], read: Callable[[str], str | bytes]) -> dict[str, Any]:
    return every(names, lambda name: json.loads(read(name)))


def _listed(manifests: Mapping[str, Any]) -> list[str]:
    """The files of all manifests that no other one replaces."""
    replaced = {name for manifest in manifests.values() for name in manifest.get("replaces", [])}
    current = (manifest for name, manifest in manifests.items() if name not in replaced)
    return [file["path"] for manifest in current for file in manifest["files"]]


def _hdfs(folder: str | Path) -> tuple[Cluster, str] | None:
    """The cluster and the folder's URI; None for a local folder."""
    if not str(folder).startswith("hdfs://"):
        return None
    from onceonly.filesystems.webhdfs import Cluster, split

    cluster = Cluster(str(folder), Settings.from_env().webhdfs)
    return cluster, cluster.root + split(str(folder))[1]


def _manifests(cluster: Cluster, root: str) -> dict[str, Any]:
    fs = cluster.fs
    if fs.info(cluster.path(root))["type"] != "directory":
        raise FileNotFoundError(f"{root} is not a folder")
    place = cluster.path(f"{root}/{FOLDER}")

    def names() -> list[str]:
        try:
            found = [path.rpartition("/")[2] for path in fs.ls(place, detail=False)]
        except FileNotFoundError:
            return []
        return [name for name in found if name.endswith(".manifest")]

    return _all(names, lambda name: fs.cat_file(f"{place}/{name}"))


def _stored(folder: str | Path) -> tuple[FileSystem, str] | None:
    """The file system and the folder's URI; None for another folder."""
    if "://" not in str(folder) or str(folder).startswith("file:"):
        return None
    from onceonly.filesystems import places

    return places.of(str(folder))


def _on_store(on: FileSystem, root: str) -> dict[str, Any]:
    if not on.names(root):
        raise FileNotFoundError(f"{root} is not a folder")
    place = f"{root}/{FOLDER}"
    return _all(
        lambda: [name for name in on.names(place) if name.endswith(".manifest")],
        lambda name: on.read(f"{place}/{name}"),
    )
