"""Moves files from a staged folder to their final names. Each appears complete, and none is ever overwritten.

A file gets its final name in one step, which fails if the name exists. A crash between any two steps does no harm. The
manifest is written last, in the same way. It is the evidence that every file of the checkpoint was moved. A rehearsal
goes through all of that, up to the write that counts, and tries names that no reader sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from onceonly.sinks.files import manifest
from onceonly.sinks.files.errors import FileMissing, NameTaken, ReplacedMissing, TargetMissing
from onceonly.sinks.files.handle import FileHandle, PublishedFiles, StagedFile
from onceonly.sinks.files.manifest import Manifest
from onceonly.storage.interface import (
    MAX_PARALLEL_REQUESTS,
    FileSystem,
    PlannedMove,
    PreparedFile,
    UnsuitableTarget,
    has_folder,
    parent,
    parents,
)
from onceonly.storage.own_paths import OwnPath

REFUSALS = (FileMissing, NameTaken, ReplacedMissing, TargetMissing, UnsuitableTarget)


def move(file_system: FileSystem, files: Iterable[StagedFile], folder: OwnPath, target: str) -> None:
    """Move all files to their final names, no matter which of them a crash or another process has left unmoved.

    Raises:
        NameTaken, FileMissing: one file needs manual resolution; the others were moved.
    """
    files = list(files)
    _change_names(file_system, files, target, lambda file: _move(file_system, file, folder, target))
    _do_for_each(files, lambda file: file_system.drop_old_name(folder.join(file.staged)))


def move_back(file_system: FileSystem, files: Iterable[StagedFile], folder: OwnPath, target: str) -> None:
    """Move the files that have their final names back into `folder`, no matter how many already were.

    A file with such a name but other content stays.
    """
    moved = [file for file in files if file_system.exists(f"{target}/{file.final}")]
    _change_names(file_system, moved, target, lambda file: _move_back(file_system, file, folder, target))


def _change_names(
    file_system: FileSystem, files: Iterable[StagedFile], target: str, change: Callable[[StagedFile], None]
) -> None:
    """Change the names of all files, and sync the folders of their final names.

    All changes are tried before the first error is raised.
    """
    files = list(files)
    folders = parents(f"{target}/{file.final}" for file in files)
    for folder in folders:
        file_system.make_folder(folder, target)
    _do_for_each(files, change)
    for folder in folders:
        file_system.sync_names(folder)


def _move(file_system: FileSystem, file: StagedFile, folder: OwnPath, target: str) -> None:
    """Move one file; harmless if it was moved already.

    Raises:
        NameTaken: the final name belongs to another file.
        FileMissing: the file is in neither place.
    """
    staged, final = folder.join(file.staged), f"{target}/{file.final}"
    try:
        file_system.move(staged, final, PreparedFile(file.fingerprint, file.upload))
    except FileExistsError:
        check_same(file_system, file, final)
    except FileNotFoundError:
        if file_system.exists(final):
            check_same(file_system, file, final)
            return
        what = "is not the file that was staged" if file_system.exists(staged.path) else "does not exist"
        raise FileMissing(f"{staged.path} {what}, and {final} does not exist") from None


def _move_back(file_system: FileSystem, file: StagedFile, folder: OwnPath, target: str) -> None:
    """Move one file back into `folder`, unless the file with its final name is another one."""
    final, staged = OwnPath(target, file.final), folder.join(file.staged).path
    with suppress(FileNotFoundError, IsADirectoryError):  # not moved yet, moved back by another process, or a folder
        if file_system.read_fingerprint(final.path) != file.fingerprint:
            return
        file_system.make_folder(parent(staged), folder.path)
        with suppress(FileExistsError):  # a process was killed within a move: it has both names
            file_system.move(final, staged)
        file_system.sync_names(parent(staged))  # first: a disk may lose the new name, and not the removal
        file_system.remove(final)


def check_same(file_system: FileSystem, file: StagedFile, final: str) -> None:
    """Raise NameTaken unless the file at the final name is this one."""
    try:
        final_print = file_system.read_fingerprint(final)
    except IsADirectoryError:
        raise NameTaken(f"the folder {final}") from None
    if final_print == file.fingerprint:
        return
    if final_print.algorithm != file.fingerprint.algorithm:
        raise NameTaken(
            f"{final} (with a checksum by {final_print.algorithm}, ours is by {file.fingerprint.algorithm})"
        )
    raise NameTaken(final)


def rehearse(file_system: FileSystem, handle: FileHandle, staged: OwnPath, target: str, content: Manifest) -> None:
    """Go through a commit. It writes no manifest, and gives no file its final name.

    Args:
        staged: the folder of the transaction.
        content: of the manifest that the commit will write.
    Raises:
        FileMissing: what was staged is not there as it was; staging it again helps.
        TargetMissing, ReplacedMissing, NameTaken, UnsuitableTarget: a person has to act.
        NotCommitted, OSError: no answer.
    """
    if not handle.rewinds and not file_system.has_begun(staged):
        if not has_folder(file_system, staged.root) and not has_folder(file_system, target):
            raise TargetMissing(f"{target} and {staged.root}")
        raise FileMissing(f"{staged.path} does not exist")
    file_system.check(target)
    data = staged.join("data")
    _do_for_each(handle.files, lambda file: _check_file(file_system, file, data, target))
    if not handle.rewinds:  # a rewind stages nothing, and its commit creates the folder
        names = [PlannedMove(data.join(file.staged).path, f"{target}/{file.final}") for file in handle.files]
        file_system.check_names(staged, names, target, manifest.to_text(content))
    for publication in handle.replaced:
        _check_replaced(file_system, publication, target)


def _do_for_each(files: Iterable[StagedFile], do: Callable[[StagedFile], None]) -> None:
    """Do it for all files in parallel, then raise the error of the first one that has one."""
    with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
        futures = [pool.submit(do, file) for file in files]
    for future in futures:
        future.result()


def _check_file(file_system: FileSystem, file: StagedFile, data: OwnPath, target: str) -> None:
    """Check that a file is as it was staged, or has its final name already: then another process has moved it.

    Raises:
        FileMissing: it is neither.
        NameTaken: its final name belongs to another file.
    """
    with suppress(FileNotFoundError):
        check_same(file_system, file, f"{target}/{file.final}")
        return
    staged = data.join(file.staged)
    try:
        file_system.check_staged(staged, PreparedFile(file.fingerprint, file.upload))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise FileMissing(f"{staged.path} does not exist, or is not the file that was staged") from error


def _check_replaced(file_system: FileSystem, publication: PublishedFiles, target: str) -> None:
    """Check that the commit can remove its files, as it does after the manifest is written."""
    content = manifest.read_ours(file_system, f"{target}/{publication.manifest}")
    if content is None or manifest.is_given_up(content):
        raise ReplacedMissing(f"{target}/{publication.manifest}")
    _check_removals(file_system, [*publication.files, publication.manifest], target)


def _check_removals(file_system: FileSystem, paths: list[str], target: str) -> None:
    with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
        list(pool.map(lambda path: file_system.check_removal(f"{target}/{path}"), paths))
