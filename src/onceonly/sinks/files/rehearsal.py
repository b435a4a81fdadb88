"""A commit of files up to the write that counts: everything is looked at, and names are tried that no reader sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from onceonly.sinks.files import manifest, moves
from onceonly.sinks.files.handle import FileHandle, Published
from onceonly.sinks.files.moves import FileMissing, NameTaken, StagedFile
from onceonly.storage.interface import MAX_PARALLEL_REQUESTS, FileSystem, PlannedMove, PreparedFile, UnsuitableTarget
from onceonly.storage.own_paths import OwnPath


class TargetMissing(Exception):
    """Neither the target nor the folder beside it exists: perhaps their volume is not mounted."""


class ReplacedMissing(Exception):
    """What is to be replaced has no manifest any more."""


REFUSALS = (FileMissing, NameTaken, ReplacedMissing, TargetMissing, UnsuitableTarget)


def rehearse(
    file_system: FileSystem, handle: FileHandle, staged: OwnPath, target: str, content: Mapping[str, Any]
) -> None:
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
        if not is_there(file_system, staged.root) and not is_there(file_system, target):
            raise TargetMissing(f"{target} and {staged.root}")
        raise FileMissing(f"{staged.path} does not exist")
    file_system.check(target)
    data = staged.join("data")
    _check_each_file(handle.files, lambda file: _check_file(file_system, file, data, target))
    if not handle.rewinds:  # a rewind stages nothing, and its commit creates the folder
        names = [PlannedMove(data.join(file.staged).path, f"{target}/{file.final}") for file in handle.files]
        file_system.check_names(staged, names, target, moves.text(content))
    for publication in handle.replaced:
        _check_replaced(file_system, publication, target)


def is_there(file_system: FileSystem, folder: str) -> bool:
    """Return whether a folder exists. An object store has none: there, one exists as long as something is in it."""
    return file_system.exists(folder) or bool(file_system.list_names(folder))


def _check_each_file(files: tuple[StagedFile, ...], check: Callable[[StagedFile], None]) -> None:
    """Check all files in parallel, then raise the error of the first one that has one."""
    with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
        checks = [pool.submit(check, file) for file in files]
    for future in checks:
        future.result()


def _check_file(file_system: FileSystem, file: StagedFile, data: OwnPath, target: str) -> None:
    """Check that a file is as it was staged, or has its final name already: then another process has moved it.

    Raises:
        FileMissing: it is neither.
        NameTaken: its final name belongs to another file.
    """
    with suppress(FileNotFoundError):
        moves.check_same(file_system, file, f"{target}/{file.final}")
        return
    staged = data.join(file.staged)
    try:
        file_system.check_staged(staged, PreparedFile(file.print, file.upload))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise FileMissing(f"{staged.path} does not exist, or is not the file that was staged") from error


def _check_replaced(file_system: FileSystem, publication: Published, target: str) -> None:
    """Check that the commit can remove its files, as it does after the manifest is written."""
    content = manifest.read_ours(file_system, f"{target}/{publication.manifest}")
    if content is None or manifest.is_given_up(content):
        raise ReplacedMissing(f"{target}/{publication.manifest}")
    _check_removals(file_system, [*publication.files, publication.manifest], target)


def _check_removals(file_system: FileSystem, paths: list[str], target: str) -> None:
    with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
        list(pool.map(lambda path: file_system.check_removal(f"{target}/{path}"), paths))
