"""What a power cut may leave of a folder: every write of a program, replayed as far as POSIX lets a disk have it.

A file's data is certain once the file was synced, and a name once its folder was; whatever else a program did is there,
or not, or a part of it, in any combination. A rename within a folder is there or not; from one folder to another it may
also be half there, with both names. Source of the program's system calls: strace.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from integration.faults.syncs import MARKS, MISSING

CALLS = {
    *("open", "openat", "creat", "write", "pwrite64", "writev", "ftruncate", "truncate", "fallocate", "rename"),
    *("renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir", "fsync"),
    *("fdatasync", "readlink", "readlinkat", "copy_file_range", "sendfile", "symlink", "symlinkat", "sync_file_range"),
}
BY_PATH = {
    *("open", "openat", "creat", "rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "mkdir"),
    *("mkdirat", "rmdir"),
}
LINE = re.compile(r"(\d+) +(?:<\.\.\. )?(\w+)(?:\(| resumed>)(.*)", re.DOTALL)
DONE = re.compile(r"\) += (-?\d+)")
HEX = re.compile(r"(?:\\x[0-9a-f]{2})+")
QUOTED = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
DESCRIBED = re.compile(r"<((?:\\x[0-9a-f]{2})+)>")  # by strace: the path of a descriptor
DRAWS = 4  # at random, of each cut
KEPT, HALF, LOST = "kept", "half", "lost"


@dataclass(frozen=True)
class Op:
    """A change of a file's data or of a folder's names.

    Args:
        node: whose sync makes it certain: a file, or the folder of the name.
        kind: 'data', 'cut', 'name', 'unname' or 'move' (within one folder).
        needs: another operation without which it is not there: a name moved away needs its new one.
    """

    kind: str
    node: int
    name: str = ""
    target: int = 0
    offset: int = 0
    data: bytes = b""
    other: str = ""
    needs: int | None = None


@dataclass(frozen=True)
class Sync:
    node: int


@dataclass(frozen=True)
class Mark:
    """The program has told somebody: what it says has to be there after any cut from here on."""

    word: str


Event = Op | Sync | Mark


@dataclass
class Disk:
    """Files and folders as nodes. A folder has names, a file has data."""

    names: dict[int, dict[str, int]] = field(default_factory=lambda: {0: {}})
    data: dict[int, bytes] = field(default_factory=dict)

    def apply(self, op: Op, part: str = KEPT) -> None:
        if op.kind == "data":
            data = op.data[: len(op.data) // 2] if part == HALF else op.data
            before = self.data.get(op.node, b"").ljust(op.offset, b"\0")
            self.data[op.node] = before[: op.offset] + data + before[op.offset + len(data) :]
        elif op.kind == "cut":
            self.data[op.node] = self.data.get(op.node, b"")[: op.offset].ljust(op.offset, b"\0")
        else:
            names = self.names.setdefault(op.node, {})
            if op.kind in ("unname", "move") and names.get(op.other or op.name) == op.target:
                del names[op.other or op.name]
            if op.kind in ("name", "move"):
                names[op.name] = op.target

    def image(self, node: int = 0, path: str = "") -> Iterator[tuple[str, bytes | None]]:
        """Each path below a folder, with the data of a file; None: a folder."""
        for name, child in sorted(self.names.get(node, {}).items()):
            if child in self.names:
                yield f"{path}{name}", None
                yield from self.image(child, f"{path}{name}/")
            else:
                yield f"{path}{name}", self.data.get(child, b"")


@dataclass(frozen=True)
class Image:
    """What a power cut leaves, and what had been told by then."""

    paths: Mapping[str, bytes | None]
    told: tuple[str, ...]
    why: str

    def restore(self, folder: Path) -> None:
        """Make it of what is there. Its folders are those of the recording, by their inodes, if they were away, too."""
        aside = folder.with_name(f"{folder.name}-aside")
        aside.mkdir(exist_ok=True)
        for kept in list(aside.iterdir()):  # who went on after another cut may have made one of that name
            shutil.rmtree(folder / kept.name, ignore_errors=True)
            kept.rename(folder / kept.name)
        for path in sorted(folder.rglob("*"), reverse=True):
            if not path.is_dir():
                path.unlink()
            elif path.parent != folder:
                path.rmdir()
            elif path.name not in self.paths:
                path.rename(aside / path.name)
        for name, data in self.paths.items():
            if data is None:
                (folder / name).mkdir(exist_ok=True)
            else:
                (folder / name).write_bytes(data)


class Recording:
    """The changes of everything below a folder, which was empty.

    Args:
        elsewhere: a folder in it that stands for another machine, which keeps its power.
    """

    def __init__(self, folder: Path, elsewhere: str) -> None:
        self.folder, self.disk = str(folder), Disk()
        self._elsewhere, self._nodes_elsewhere = elsewhere, set[int]()
        self.events: list[Event] = []
        self._next, self._positions = 1, dict[int, int]()

    # ---- making it, call by call

    def take(self, call: str, arguments: str) -> None:
        """Note a call that has succeeded."""
        words = [_bytes(match) for match in HEX.findall(arguments)]
        if call in ("write", "pwrite64", "writev"):
            self._write(call, arguments, words)
        elif call in ("fsync", "fdatasync", "ftruncate"):
            self._sync_or_cut(call, arguments, _text(HEX.findall(arguments)[0]))
        elif call in BY_PATH:
            paths = self._paths(call, arguments, [_text(match) for match in HEX.findall(arguments)])
            self._take_paths(call, arguments, paths)
        elif words and self._find(words[0 if call == "sendfile" else -1].decode("utf-8", "replace")) is not None:
            raise AssertionError(f"{call} is not known to this model: {words}")

    def _take_paths(self, call: str, arguments: str, paths: Sequence[str]) -> None:
        if call.startswith(("open", "creat")):
            self._open(paths[0], arguments)
        elif call.startswith("mkdir"):
            self._make(paths[0], is_folder=True)
        elif call.startswith(("unlink", "rmdir")):
            self._unname(paths[0])
        else:
            self._give(call, *paths)

    def _sync_or_cut(self, call: str, arguments: str, path: str) -> None:
        node = self._find(path)
        if node is None:
            return
        if call == "ftruncate":
            self._change(Op("cut", node, offset=int(re.findall(r", (\d+)\)", arguments)[0])))
        else:
            self.events.append(Sync(node))

    def mark(self, word: str) -> None:
        self.events.append(Mark(word))

    def _paths(self, call: str, arguments: str, texts: Sequence[str]) -> Sequence[str]:
        """The paths of a call, each relative to a folder's descriptor if the call takes one."""
        if not call.endswith("at") and call != "renameat2":
            return texts
        names, folders = map(_text, QUOTED.findall(arguments)), map(_text, DESCRIBED.findall(arguments))
        return [os.path.normpath(os.path.join(folder, name)) for folder, name in zip(folders, names, strict=False)]

    def _find(self, path: str) -> int | None:
        """The node of a path; None: it is none of this folder's."""
        if path == self.folder:
            return 0
        if not path.startswith(self.folder + "/"):
            return None
        node = 0
        for name in path[len(self.folder) + 1 :].split("/"):
            child = self.disk.names.get(node, {}).get(name)
            if child is None:
                return None
            node = child
        return node

    def _place(self, path: str) -> tuple[int, str] | None:
        folder, name = os.path.split(path)
        node = self._find(folder)
        return None if node is None else (node, name)

    def _change(self, op: Op) -> int:
        self.disk.apply(op)
        self.events.append(op)
        return len(self.events) - 1

    def _make(self, path: str, is_folder: bool) -> None:
        place = self._place(path)
        if place is None:
            return
        node, self._next = self._next, self._next + 1
        if place == (0, self._elsewhere) or place[0] in self._nodes_elsewhere:
            self._nodes_elsewhere.add(node)
        if is_folder:
            self.disk.names[node] = {}
        self._change(Op("name", place[0], place[1], node))

    def _open(self, path: str, arguments: str) -> None:
        node = self._find(path)
        if node is None:
            if "O_CREAT" in arguments:
                self._make(path, is_folder=False)
                node = self._find(path)
        elif "O_TRUNC" in arguments and self.disk.data.get(node):
            self._change(Op("cut", node))
        if node is not None and ("O_WRONLY" in arguments or "O_RDWR" in arguments):
            self._positions[node] = len(self.disk.data.get(node, b"")) if "O_APPEND" in arguments else 0

    def _write(self, call: str, arguments: str, words: Sequence[bytes]) -> None:
        node, result = self._find(words[0].decode("utf-8", "replace")), int(DONE.findall(arguments)[-1])
        if node is None or not result:
            return
        data = b"".join(words[1:])[:result]
        assert len(data) == result, f"strace has shown {len(data)} of {result} bytes"
        offset = self._positions.get(node, 0)
        if call == "pwrite64":
            offset = int(re.findall(r", (\d+)\)", arguments)[-1])
        else:
            self._positions[node] = offset + result
        self._change(Op("data", node, offset=offset, data=data))

    def _unname(self, path: str) -> None:
        place = self._place(path)
        node = self._find(path)
        if place is not None and node is not None:
            self._change(Op("unname", place[0], place[1], node))

    def _give(self, call: str, old: str, new: str) -> None:
        node, place, before = self._find(old), self._place(new), self._place(old)
        assert (node is None) == (place is None), f"{old} → {new} leaves or enters the folder"
        if node is None or place is None or before is None:
            return
        if call.startswith("link"):
            self._change(Op("name", place[0], place[1], node))
        elif before[0] == place[0]:
            self._change(Op("move", place[0], place[1], node, other=before[1]))
        else:
            named = self._change(Op("name", place[0], place[1], node))
            self._change(Op("unname", before[0], before[1], node, needs=named))

    # ---- what a power cut leaves

    def images(self, seed: int, most: int | None = None) -> list[Image]:
        """What a cut may leave, each once for what had been told; of more than `most` choices, so many at random."""
        chance, images = random.Random(seed), dict[tuple[str, int], Image]()
        choices = [(end, *choice) for end in self._ends() for choice in self._choices(end, chance)]
        for end, why, parts in choices if most is None or len(choices) <= most else chance.sample(choices, most):
            told = tuple(event.word for event in self.events[:end] if isinstance(event, Mark))
            paths = dict(self._replay(end, parts).image())
            digest = hashlib.sha256(repr(paths).encode()).hexdigest()
            images.setdefault((digest, len(told)), Image(paths, told, f"cut at event {end}, {why}"))
        return list(images.values())

    def _ends(self) -> list[int]:
        """Just before something becomes certain or is told: what a cut leaves earlier, it may leave here too."""
        ends = [number for number, event in enumerate(self.events) if not isinstance(event, Op)]
        return [*ends, len(self.events)]

    def _pending(self, end: int) -> list[int]:
        """The changes that no sync has made certain before that event."""
        synced: dict[int, int] = {}
        for number, event in enumerate(self.events[:end]):
            if isinstance(event, Sync):
                synced[event.node] = number
        pending = []
        for number, event in enumerate(self.events[:end]):
            if not isinstance(event, Op) or {event.node, event.target} & self._nodes_elsewhere:
                continue
            if synced.get(event.node, -1) < number:
                pending.append(number)
        return pending

    def _choices(self, end: int, chance: random.Random) -> Iterator[tuple[str, dict[int, str]]]:
        """Of what is not certain: the first changes in their order; each alone; all but each; and some at random."""
        pending = self._pending(end)
        none = dict.fromkeys(pending, LOST)
        for place, number in enumerate(pending):
            yield f"the first {place} of {len(pending)}", dict.fromkeys(pending[place:], LOST)
            yield f"without {number}", {number: LOST}
            yield f"only {number}", {key: part for key, part in none.items() if key != number}
        yield "all there", {}
        for draw in range(DRAWS if pending else 0):
            yield f"draw {draw}", {number: chance.choice((KEPT, HALF, LOST)) for number in pending}

    def _replay(self, end: int, parts: Mapping[int, str]) -> Disk:
        disk = Disk(names={node: {} for node in self.disk.names})
        for number, event in enumerate(self.events[:end]):
            if isinstance(event, Op):
                part = parts.get(number, KEPT)
                needed = KEPT if event.needs is None else parts.get(event.needs, KEPT)
                if part != LOST and needed != LOST:
                    disk.apply(event, part if event.kind == "data" else KEPT)
        return disk


def record(command: Sequence[str], folder: Path, elsewhere: str, trace: Path, env: Mapping[str, str]) -> Recording:
    """Run the program with all its processes, and return what it did below an empty folder."""
    if shutil.which("strace") is None:
        pytest.skip(MISSING)
    calls = ",".join(f"?{call}" for call in sorted(CALLS))
    strace = ["strace", "-f", "--seccomp-bpf", "-y", "-xx", "-s", "16777216", "-e", f"trace={calls}", "-o", str(trace)]
    done = subprocess.run([*strace, *command], capture_output=True, text=True, env={**os.environ, **env})
    if "ptrace" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("this machine forbids strace")
    assert done.returncode == 0, done.stderr[-4000:]
    recording = Recording(folder, elsewhere)
    for call, arguments in _calls(trace.read_text().splitlines()):
        if not call.startswith("readlink"):
            recording.take(call, arguments)
            continue
        for text in map(_text, HEX.findall(arguments)):
            if text.startswith(f"{MARKS}/"):
                recording.mark(text.removeprefix(f"{MARKS}/"))
    return recording


def _bytes(hexadecimal: str) -> bytes:
    return bytes.fromhex(hexadecimal.replace("\\x", ""))


def _text(hexadecimal: str) -> str:
    return _bytes(hexadecimal).decode("utf-8", "replace")


def _calls(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Calls that have succeeded, and marks, which never do.

    A call that was interrupted by another thread is told in two lines; it has happened when it returns.
    """
    begun: dict[str, str] = {}
    for line in lines:
        match = LINE.match(line)
        if not match:
            continue
        process, call, rest = match.groups()
        if rest.endswith("<unfinished ...>"):
            begun[process] = rest.removesuffix("<unfinished ...>")
            continue
        arguments = begun.pop(process, "") + rest if "resumed>" in line else rest
        result = DONE.search(arguments)
        if result and (int(result[1]) >= 0 or call.startswith("readlink")):
            yield call, arguments
