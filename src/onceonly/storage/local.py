"""A local or mounted file system with hard links: a file gets its final name by link(2), which fails if it exists."""

from __future__ import annotations

import errno
import hashlib
import os
import pwd
import re
import stat
import uuid
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from onceonly.storage import folders
from onceonly.storage.durability import sync, sync_tree
from onceonly.storage.interface import (
    SINK_LOG,
    FileSystem,
    Fingerprint,
    PlannedMove,
    PreparedFile,
    UnsuitableTarget,
    is_hidden,
    parent,
    parents,
    probe_in,
    query_folder_error,
)
from onceonly.storage.own_paths import MANIFESTS, OwnPath

if TYPE_CHECKING:
    import pyarrow.dataset as ds  # with pandas, which takes a second

MOUNTS = Path("/proc/self/mountinfo")
TRIES = 20  # attempts to create a folder or a name that another process removes or creates
PROBE = ".probe-"  # begins the names of files that are only tried
PERMISSIONS = (errno.EPERM, errno.EACCES)
LASTING = {  # what else no repetition helps against: what it means, what to do, and a stable word
    errno.EROFS: ("it is mounted read-only", "Mount it for writing.", "target-read-only"),
    errno.ENOSPC: ("it is full", "Make space.", "target-full"),
    errno.EDQUOT: ("its quota is used up", "Raise the quota, or make space.", "target-full"),
    errno.ENAMETOOLONG: ("the name is too long there", "Give pipeline or sink a shorter name.", "name-too-long"),
    errno.EMLINK: ("it has as many links as the file system allows", "Use another file system.", "too-many-links"),
}


class LocalFiles(FileSystem):
    """Files and folders are durable once they were synced (fsync)."""

    def __init__(self) -> None:
        self._checked: dict[str, tuple[int, ...]] = {}  # by path: what a staged file was when its content was checked

    def check(self, target: str) -> None:
        """Refuse a target that cannot take files.

        Raises:
            UnsuitableTarget: also the root of a file system: rows are staged beside it, on another file system.
        """
        place = Path(target)
        nearest = next(path for path in (place, *place.parents) if path.exists())
        if not nearest.is_dir():
            raise UnsuitableTarget(f"{nearest} is not a folder.", "Choose another path.")
        if not os.access(nearest, os.W_OK | os.X_OK, effective_ids=True):
            why = f"this process has no write permission in {nearest}."
            raise UnsuitableTarget(why, "Grant it, or choose another path.", code="target-not-writable")
        if (place / "_delta_log").exists():
            raise UnsuitableTarget(f"{target} is a Delta table.", "Use a DeltaSink, or another folder.")
        if (place / SINK_LOG).exists():
            raise query_folder_error(target)
        if place.exists() and place.stat().st_dev != place.parent.stat().st_dev:
            raise UnsuitableTarget(
                f"{target} is the root of a file system, and rows are staged beside it, on another one.",
                "Choose a folder below it, so that a hard link can publish a staged file.",
            )
        above = os.path.realpath(place.parent)
        mounts = {f"{above}/{place.name}", f"{above}/.{place.name}.staged"} & _mount_points()
        if mounts:
            raise UnsuitableTarget(
                f"{mounts.pop()} is a mount point: no hard link can go from the staging folder to the published one.",
                "Mount the folder above it, or choose a folder below it.",
            )

    def is_same_folder(self, one: str, other: str) -> bool:
        """Compare device and inode, so through any mount or link."""
        with suppress(FileNotFoundError):
            return one == other or os.path.samefile(one, other)
        with suppress(FileNotFoundError):  # neither exists yet
            return Path(one).name == Path(other).name and os.path.samefile(parent(one), parent(other))
        return False

    def probe(self, folder: OwnPath, target: str) -> None:
        """Try a hard link: a bind mount has the same device number on both sides, and no hard link can cross it."""
        probe = folder.join(".probe")
        name = OwnPath(target, f".{folder.name}") if os.path.isdir(target) else folder.join(".name")
        try:
            _make_folders(folder.path)
            Path(probe.path).touch()
            os.link(probe.path, name.path)
        except OSError as error:
            raise _no_link(folder.path, target, error) from error
        finally:
            self.remove(name)
            self.remove(probe)

    def check_staged(self, old: OwnPath, ready: PreparedFile) -> None:
        try:
            super().check_staged(old, ready)
            self._checked[old.path] = _version(old.path)
        except PermissionError as error:
            raise _other_user(old.path) from error

    def check_movable(self, old: OwnPath) -> None:
        """Link a file to a name beside it and remove that, both of which `move` needs permission for.

        The kernel refuses links of another user's files (fs.protected_hardlinks), and an executor may have written it.
        """
        probe = OwnPath(old.root, f"{parent(old.name)}/{PROBE}{uuid.uuid4().hex}")
        try:
            os.link(old.path, probe.path)
            self.remove(probe)
        except OSError as error:
            refusal = _other_user(old.path) if error.errno in PERMISSIONS else self.find_refusal(error)
            if refusal:
                raise refusal from error
            raise

    def check_names(self, folder: OwnPath, files: Collection[PlannedMove], target: str, text: str) -> None:
        """Link a file to a name in each of the folders, or in the nearest parent that exists, and remove it."""
        probe = folder.join(f"{PROBE}{uuid.uuid4().hex}")
        try:
            self.write(probe.path, text)
            if not os.path.isdir(target):
                return self._check_new_target(target)
            places = [*parents(file.final for file in files), f"{target}/{MANIFESTS}"]
            for place in sorted({_nearest(place) for place in places}):
                self._try_name(probe, probe_in(target, place.removeprefix(target).strip("/"), folder))
        except OSError as error:
            if refusal := self.find_refusal(error):
                raise refusal from error
            raise
        finally:
            self.remove(probe)

    def _try_name(self, file: OwnPath, name: OwnPath) -> None:
        """Link the file to that name and remove it; another process may try the same name, or have died doing so."""
        for _ in range(TRIES):
            with suppress(FileExistsError):
                os.link(file.path, name.path)
                break
            self.remove(name)
        self.remove(name)

    def _check_new_target(self, target: str) -> None:
        """Check that a target that does not exist yet can be created. Raises UnsuitableTarget."""
        if not os.access(parent(target), os.W_OK | os.X_OK, effective_ids=True):
            raise UnsuitableTarget(
                f"this process has no write permission in {parent(target)}.", "Grant it.", code="target-not-writable"
            )

    def check_removal(self, path: str) -> None:
        """Check the permissions of the folder and the file.

        In a folder with the sticky bit, only the owners of the file and of the folder may remove it.
        """
        place = parent(path)
        if not os.path.exists(path):
            return
        folder, owners = os.stat(place), (0, os.stat(path).st_uid, os.stat(place).st_uid)
        is_refused = folder.st_mode & stat.S_ISVTX and os.geteuid() not in owners
        if is_refused or not os.access(place, os.W_OK | os.X_OK, effective_ids=True):
            raise _not_writable(place)

    def remove_probes(self, folder: OwnPath, target: str) -> None:
        """Remove the probes by the staged folders: those have the same names as the published ones."""
        places = {"", MANIFESTS}
        for root, _, _ in os.walk(folder.path):
            places.add(os.path.relpath(root, folder.path).partition("/")[2])  # below `data`
        for place in places:
            with suppress(NotADirectoryError):
                self.remove(probe_in(target, place, folder))

    def find_refusal(self, error: OSError) -> UnsuitableTarget | None:
        path = str(error.filename2 or error.filename or "the target")
        if error.errno in PERMISSIONS:
            is_link = error.filename2 is not None and os.access(parent(path), os.W_OK | os.X_OK, effective_ids=True)
            return _other_user(str(error.filename)) if is_link else _not_writable(parent(path))
        if error.errno == errno.EXDEV:
            return _no_link(str(error.filename), path, error)
        if error.errno in LASTING:
            why, todo, code = LASTING[error.errno]
            return UnsuitableTarget(f"{path}: {why} ({error.strerror}).", todo, code)
        return None

    def move(self, old: OwnPath, new: str, ready: PreparedFile | None = None) -> None:
        """Give it the new name only: the old one stays until the new one is durable.

        A disk may write a removal before an older link to its medium. If the power is cut in between, a file that has
        lost both names is gone. A staged file that was not checked since it was changed last is checked here.
        """
        is_checked = not ready or self._checked.get(old.path) == _version(old.path)
        if ready and not is_checked and self.read_fingerprint(old.path) != ready.fingerprint:
            raise FileNotFoundError(f"{old.path} is not the file that was staged")
        os.link(old.path, new)

    def drop_old_name(self, old: OwnPath) -> None:
        self.remove(old)

    def rename_folder(self, old: OwnPath, new: OwnPath) -> None:
        if not os.path.exists(new.path):
            with suppress(FileNotFoundError):
                os.rename(old.path, new.path)
                sync(Path(new.path).parent)

    def read_fingerprint(self, path: str) -> Fingerprint:
        with Path(path).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return Fingerprint(os.fstat(file.fileno()).st_size, "sha256", digest)

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def find_size(self, path: str) -> int | None:
        place = Path(path)
        return place.stat().st_size if place.is_file() else None

    def read(self, path: str) -> str:
        return Path(path).read_text()

    def write(self, path: str, text: str) -> None:
        Path(path).write_text(text)
        sync(Path(path))

    def make_folder(self, folder: str, root: str) -> None:
        place, end = Path(folder), Path(root).parent
        if not os.path.isdir(root):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), root)
        missing = [path for path in (place, *place.parents) if path.is_relative_to(root) and not path.is_dir()]
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
        while place != end:
            place = place.parent
            with suppress(PermissionError):  # a parent of the target may be another user's
                sync(place)

    def sync_names(self, folder: str) -> None:
        sync(Path(folder))

    def make_durable(self, folder: str) -> None:
        sync_tree(Path(folder))

    def list_visible(self, folder: str) -> Iterator[str]:
        for root, places, names in os.walk(folder):
            places[:] = sorted(name for name in places if not is_hidden(name))  # `os.walk` descends into these only
            for name in sorted(names):
                if not is_hidden(name):
                    yield str((Path(root) / name).relative_to(folder))

    def list_names(self, folder: str) -> list[str]:
        return os.listdir(folder) if os.path.isdir(folder) else []

    def remove(self, file: OwnPath) -> None:
        Path(file.path).unlink(missing_ok=True)

    def remove_empty(self, folder: str) -> None:
        with suppress(OSError):
            os.rmdir(folder)

    def delete(self, folder: OwnPath) -> None:
        folders.delete(folder)

    def read_rows(
        self, folder: str, format: ds.FileFormat, schema: pa.Schema | None = None, by: pa.Schema | None = None
    ) -> pa.RecordBatchReader:
        import pyarrow.dataset as ds

        hive = ds.partitioning(by, flavor="hive")
        return ds.dataset(folder, schema, format, partitioning=hive).scanner().to_reader()


def _make_folders(folder: str) -> None:
    """Create a folder and its parent, which another process may remove at the same time because it is empty."""
    for _ in range(TRIES):
        with suppress(FileNotFoundError):
            return os.makedirs(folder, exist_ok=True)
    os.makedirs(folder, exist_ok=True)


def _version(path: str) -> tuple[int, ...]:
    """Return what changes with the content of a file, and not with its links."""
    info = os.stat(path)
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def _nearest(folder: str) -> str:
    """Return the folder itself, or its nearest parent that exists."""
    return next(str(path) for path in (Path(folder), *Path(folder).parents) if path.is_dir())


def _owner(folder: os.stat_result) -> str:
    return f"user {_user(folder.st_uid)} (mode {stat.S_IMODE(folder.st_mode):04o})"


def _user(uid: int) -> str:
    try:
        return f"'{pwd.getpwuid(uid).pw_name}'"
    except KeyError:
        return str(uid)


def _other_user(path: str) -> UnsuitableTarget:
    try:
        file, folder = os.stat(path), os.stat(parent(path))
        owners = f"user {_user(file.st_uid)} (mode {stat.S_IMODE(file.st_mode):04o}), its folder to {_owner(folder)}"
    except PermissionError:
        owners = "another user"
    return UnsuitableTarget(
        f"{path} belongs to {owners}. This process runs as user {_user(os.geteuid())}, which may not read, link or "
        "remove it. Linux links only files that one owns or may write (fs.protected_hardlinks).",
        "Run Spark's executors and Onceonly as one user; or put both users into one group and let Spark write for it: "
        "umask 002, spark.hadoop.fs.permissions.umask-mode=002. What is staged already needs chown to that user.",
        code="files-of-another-user",
    )


def _not_writable(place: str) -> UnsuitableTarget:
    return UnsuitableTarget(
        f"user {_user(os.geteuid())} may not create or remove files in {place}.",
        "Grant it.",
        code="target-not-writable",
    )


def _no_link(folder: str, target: str, error: OSError) -> UnsuitableTarget:
    if error.errno == errno.EXDEV:
        return UnsuitableTarget(
            f"{target} is on another file system or mount than its staging folder {folder} ({error.strerror}).",
            "Mount the folder above it, or choose a folder below the mount point.",
            code="target-on-another-device",
        )
    return UnsuitableTarget(
        f"the file system of {target} has no hard links ({error.strerror}).",
        "Use one with hard links, or a DeltaSink.",
    )


def _mount_points() -> set[str]:
    """Return the mount points, on Linux; elsewhere none, and `probe` fails instead.

    Source: proc(5), mountinfo: the fifth field, with special characters escaped as octal numbers.
    """
    points: set[str] = set()
    with suppress(OSError):
        for line in MOUNTS.read_text().splitlines():
            point = line.split(" ")[4]
            points.add(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point))
    return points
