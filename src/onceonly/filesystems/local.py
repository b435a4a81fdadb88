"""A local or mounted file system with hard links: a file gets its final name by link(2), which fails if it exists."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from onceonly.filesystems import folders
from onceonly.filesystems.confined import OwnPath
from onceonly.filesystems.durability import to_disk, tree_to_disk
from onceonly.filesystems.interface import FileSystem, Fingerprint, Ready, Unsuitable, is_hidden, parent

MOUNTS = Path("/proc/self/mountinfo")
TRIES = 20  # attempts to create a folder whose parent another process removes


class LocalFiles(FileSystem):
    """Files and folders are durable once they were synced (fsync)."""

    def check(self, target: str) -> None:
        """Raises Unsuitable also for the root of a file system: rows are staged beside it, on another file system."""
        place = Path(target)
        nearest = next(found for found in (place, *place.parents) if found.exists())
        if not nearest.is_dir():
            raise Unsuitable(f"{nearest} is not a folder.", "Choose another path.")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise Unsuitable(f"this process has no write permission in {nearest}.", "Grant it, or choose another path.")
        if (place / "_delta_log").exists():
            raise Unsuitable(f"{target} is a Delta table.", "Use a DeltaSink, or another folder.")
        if place.exists() and place.stat().st_dev != place.parent.stat().st_dev:
            raise Unsuitable(
                f"{target} is the root of a file system, and rows are staged beside it, on another one.",
                "Choose a folder below it, so that a hard link can publish a staged file.",
            )
        above = os.path.realpath(place.parent)
        if mounted := {f"{above}/{place.name}", f"{above}/.{place.name}.staged"} & _mount_points():
            raise Unsuitable(
                f"{mounted.pop()} is a mount point: no hard link can go from the staging folder to the published one.",
                "Mount the folder above it, or choose a folder below it.",
            )

    def same(self, one: str, other: str) -> bool:
        """By device and inode, so through any mount or link."""
        with suppress(FileNotFoundError):
            return one == other or os.path.samefile(one, other)
        with suppress(FileNotFoundError):  # neither exists yet
            return Path(one).name == Path(other).name and os.path.samefile(parent(one), parent(other))
        return False

    def probe(self, folder: OwnPath, target: str) -> None:
        """A bind mount has the same device number on both sides, and no hard link can cross it."""
        probe = folder.below(".probe")
        name = OwnPath(target, f".{folder.name}") if os.path.isdir(target) else folder.below(".name")
        try:
            _make(folder.path)
            Path(probe.path).touch()
            os.link(probe.path, name.path)
        except OSError as error:
            raise _no_link(folder.path, target, error) from error
        finally:
            self.remove(name)
            self.remove(probe)

    def move(self, old: OwnPath, new: str, ready: Ready | None = None) -> None:
        """By two steps: for a moment the file has both names."""
        os.link(old.path, new)
        self.remove(old)

    def rename_folder(self, old: OwnPath, new: OwnPath) -> None:
        if not os.path.exists(new.path):
            with suppress(FileNotFoundError):
                os.rename(old.path, new.path)
                to_disk(Path(new.path).parent)

    def fingerprint(self, path: str) -> Fingerprint:
        with Path(path).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return Fingerprint(os.fstat(file.fileno()).st_size, "sha256", digest)

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def size(self, path: str) -> int | None:
        place = Path(path)
        return place.stat().st_size if place.is_file() else None

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
            with suppress(PermissionError):  # a parent of the target may be another user's
                to_disk(place)

    def sync_names(self, folder: str) -> None:
        to_disk(Path(folder))

    def make_durable(self, folder: str) -> None:
        tree_to_disk(Path(folder))

    def visible(self, folder: str) -> Iterator[str]:
        for root, places, names in os.walk(folder):
            places[:] = sorted(name for name in places if not is_hidden(name))
            for name in sorted(names):
                if not is_hidden(name):
                    yield str((Path(root) / name).relative_to(folder))

    def names(self, folder: str) -> list[str]:
        return os.listdir(folder) if os.path.isdir(folder) else []

    def remove(self, file: OwnPath) -> None:
        Path(file.path).unlink(missing_ok=True)

    def remove_empty(self, folder: str) -> None:
        with suppress(OSError):
            os.rmdir(folder)

    def delete(self, folder: OwnPath) -> None:
        folders.delete(folder)

    def rows(
        self, folder: str, format: ds.FileFormat, schema: pa.Schema | None = None, by: pa.Schema | None = None
    ) -> pa.RecordBatchReader:
        hive = ds.partitioning(by, flavor="hive")
        return ds.dataset(folder, schema, format, partitioning=hive).scanner().to_reader()


def _make(folder: str) -> None:
    """Create a folder and its parent, which another process may remove at the same time because it is empty."""
    for _ in range(TRIES):
        with suppress(FileNotFoundError):
            return os.makedirs(folder, exist_ok=True)
    os.makedirs(folder, exist_ok=True)


def _no_link(folder: str, target: str, error: OSError) -> Unsuitable:
    if error.errno == errno.EXDEV:
        return Unsuitable(
            f"{target} is on another file system or mount than its staging folder {folder} ({error.strerror}).",
            "Mount the folder above it, or choose a folder below the mount point.",
        )
    return Unsuitable(
        f"the file system of {target} has no hard links ({error.strerror}).",
        "Use one with hard links, or a DeltaSink.",
    )


def _mount_points() -> set[str]:
    """Mount points, on Linux; elsewhere none, and `probe` fails instead. Special characters come escaped."""
    with suppress(OSError):
        found = (line.split(" ")[4] for line in MOUNTS.read_text().splitlines())
        return {re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point) for point in found}
    return set()
