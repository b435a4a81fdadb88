"""A commit of files up to the write that counts: everything is looked at, and names are tried that no reader sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from onceonly.filesystems.confined import OwnPath
from onceonly.filesystems.interface import AT_ONCE, FileSystem, Move, Ready, Unsuitable
from onceonly.sinks.files import manifest, moves
from onceonly.sinks.files.handle import FileHandle, Published
from onceonly.sinks.files.moves import FileMissing, NameTaken, StagedFile


class TargetMissing(Exception):
    """Neither the target nor the folder beside it exists: perhaps their volume is not mounted."""


class ReplacedMissing(Exception):
    """What is to be replaced has no manifest any more."""


REFUSALS = (FileMissing, NameTaken, ReplacedMissing, TargetMissing, Unsuitable)


def rehearse(on: FileSystem, mine: FileHandle, staged: OwnPath, target: str, content: Mapping[str, Any]) -> None:
    """Go through a commit. It writes no manifest, and gives no file its final name.

    Args:
        staged: the folder of the transaction.
        content: of the manifest that the commit will write.
    Raises:
        FileMissing: what was staged is not there as it was; staging it again helps.
        TargetMissing, ReplacedMissing, NameTaken, Unsuitable: a person has to act.
        NotCommitted, OSError: no answer.
    """
    if not mine.rewinds and not on.has_begun(staged):
        if not is_there(on, staged.root) and not is_there(on, target):
            raise TargetMissing(f"{target} and {staged.root}")
        raise FileMissing(f"{staged.path} does not exist")
    on.check(target)
    data = staged.below("data")
    _for_each(mine.files, lambda file: _check_file(on, file, data, target))
    files = [Move(data.below(file.staged).path, f"{target}/{file.final}") for file in mine.files]
    if not mine.rewinds:  # a rewind stages nothing, and its commit creates the folder
        on.check_names(staged, files, target, moves.text(content))
    for old in mine.out:
        _check_replaced(on, old, target)


def is_there(on: FileSystem, folder: str) -> bool:
    """An object store has no folders: there, one exists as long as something is in it."""
    return on.exists(folder) or bool(on.names(folder))


def _for_each(files: tuple[StagedFile, ...], check: Callable[[StagedFile], None]) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(check, file) for file in files]
    for each in running:
        each.result()


def _check_file(on: FileSystem, file: StagedFile, data: OwnPath, target: str) -> None:
    """A file that has its final name already was moved by another process."""
    with suppress(FileNotFoundError):
        moves.check_same(on, file, f"{target}/{file.final}")
        return
    staged = data.below(file.staged)
    try:
        on.check_staged(staged, Ready(file.print, file.upload))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise FileMissing(f"{staged.path} does not exist, or is not the file that was staged") from error


def _check_replaced(on: FileSystem, old: Published, target: str) -> None:
    """The commit removes its files after the manifest is written, so it must be able to."""
    found = manifest.read_ours(on, f"{target}/{old.manifest}")
    if found is None or manifest.is_given_up(found):
        raise ReplacedMissing(f"{target}/{old.manifest}")
    _for_each_path(on, [*old.files, old.manifest], target)


def _for_each_path(on: FileSystem, paths: list[str], target: str) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda path: on.check_removal(f"{target}/{path}"), paths))
