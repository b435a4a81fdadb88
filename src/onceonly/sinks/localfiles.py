"""A local or mounted file system with hard links: a name is made by link(2), which fails where it is taken."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from onceonly.manifests import AT_ONCE
from onceonly.sinks.filesystem import FileSystem, Print, Unfit, is_hidden, parent
from onceonly.sinks.folders import Folders, to_disk


class LocalFiles(FileSystem):
    """Durable is what fsync has been told of, files and folders."""

    def check(self, target: str) -> None:
        """Raises Unfit also for the root of a file system of its own: rows are staged beside it, on another one."""
        place = Path(target)
        nearest = next(found for found in (place, *place.parents) if found.exists())
        if not nearest.is_dir():
            raise Unfit(f"{nearest} is not a folder.", "Choose another path.")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise Unfit(f"this process may not write in {nearest}.", "Grant it, or choose another path.")
        if (place / "_delta_log").exists():
            raise Unfit(f"{target} is a Delta table.", "Use a DeltaSink, or another folder.")
        if place.exists() and place.stat().st_dev != place.parent.stat().st_dev:
            raise Unfit(
                f"{target} is the root of a file system of its own, and rows are staged beside it, on another one.",
                "Choose a folder below it.",
            )

    def try_out(self, folder: str) -> None:
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        probe, name = place / ".probe", place / f".{uuid.uuid4().hex}"
        try:
            probe.touch()
            os.link(probe, name)
        except OSError as error:
            raise Unfit(
                f"the file system of {folder} cannot give a file its name in one step ({error.strerror}).",
                "Use one with hard links, or a DeltaSink.",
            ) from error
        finally:
            name.unlink(missing_ok=True)
            probe.unlink(missing_ok=True)

    def move(self, old: str, new: str) -> None:
        """Two steps: for a moment the file has both names."""
        os.link(old, new)
        Path(old).unlink(missing_ok=True)

    def fingerprint(self, path: str) -> Print:
        with Path(path).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return Print(os.fstat(file.fileno()).st_size, "sha256", digest)

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def read(self, path: str) -> str:
        return Path(path).read_text()

    def write(self, path: str, text: str) -> None:
        Path(path).write_text(text)
        to_disk(Path(path))

    def make_folder(self, folder: str, root: str) -> None:
        place, end = Path(folder), Path(root).parent
        place.mkdir(parents=True, exist_ok=True)
        while place != end:
            place = place.parent
            with suppress(PermissionError):  # above the target it may be somebody else's
                to_disk(place)

    def keep_names(self, folder: str) -> None:
        to_disk(Path(folder))

    def make_durable(self, folder: str) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(to_disk, (Path(root) / name for root, _, names in os.walk(folder) for name in names)))
        for root, _, _ in os.walk(folder):
            to_disk(Path(root))
        to_disk(Path(folder).parent)

    def visible(self, folder: str) -> Iterator[str]:
        for root, places, names in os.walk(folder):
            places[:] = sorted(name for name in places if not is_hidden(name))
            for name in sorted(names):
                if not is_hidden(name):
                    yield str((Path(root) / name).relative_to(folder))

    def names(self, folder: str) -> list[str]:
        return os.listdir(folder) if os.path.isdir(folder) else []

    def remove(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)

    def remove_empty(self, folder: str) -> None:
        with suppress(OSError):
            os.rmdir(folder)

    def delete(self, folder: str) -> None:
        Folders(parent(folder)).delete(Path(folder).name)

    def rows(
        self, folder: str, format: ds.FileFormat, schema: pa.Schema | None = None, by: pa.Schema | None = None
    ) -> pa.RecordBatchReader:
        hive = ds.partitioning(by, flavor="hive")
        return ds.dataset(folder, schema, format, partitioning=hive).scanner().to_reader()
