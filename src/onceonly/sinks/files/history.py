"""Whether a folder still has what was published to it, by the manifest of the last publication."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onceonly.checkpoint.sink import Answer, History, Publication
from onceonly.filesystems import confined
from onceonly.filesystems.confined import MANIFESTS
from onceonly.filesystems.interface import FileSystem
from onceonly.sinks.files import manifest, moves

LOOKED_AT = 64  # manifests that are read for the last decision that a folder shows


def proof(target: str, path: str, content: Mapping[str, Any]) -> dict[str, str]:
    """A publication's proof: its target, its manifest, and the SHA-256 of that file."""
    return {"target": target, "manifest": path, "sha256": moves.digest(content)}


def compare(on: FileSystem, target: str, last: Publication) -> History:
    """Look for the manifest of the last publication, or for one that replaces it.

    The manifest tells, and not the path: the folder may be mounted in another place by now.
    """
    path = last.proof.get("manifest")
    if path is None:  # a person has accepted an empty folder
        return _same_or_elsewhere(on, target, last, _exists(on, target))
    content = manifest.read_ours(on, f"{target}/{path}")
    is_same = content is not None and moves.digest(content) == last.proof["sha256"]
    return _same_or_elsewhere(on, target, last, is_same or _is_replaced(on, target, path))


def _same_or_elsewhere(on: FileSystem, target: str, last: Publication, is_same: bool) -> History:
    if is_same:
        return History(Answer.SAME)
    if not on.same(str(last.proof["target"]), target):
        return History(Answer.ELSEWHERE, f"it was published to {last.proof['target']}, and this is {target}")
    return _went_back(on, target, last)


def _went_back(on: FileSystem, target: str, last: Publication) -> History:
    path = last.proof.get("manifest")
    if path is None or not _exists(on, target):
        return History(Answer.WENT_BACK, f"the folder {target} does not exist; perhaps its volume is not mounted")
    there = on.exists(f"{target}/{path}")
    why = f"{target}/{path} {'has other content than' if there else 'does not exist, and'} decision {last.decision}"
    why += " has written" if there else " has published it"
    earlier = [shown for shown in _shown(on, target, path) if int(shown.get("decision", 0)) < last.decision]
    return History(Answer.WENT_BACK, why, max((int(shown["decision"]) for shown in earlier), default=0))


def proof_now(on: FileSystem, target: str, last: Publication) -> Publication | None:
    """The last publication of the same pipeline, sink and state table that the folder shows."""
    if not _exists(on, target):
        return None
    paths = (publication.proof.get("manifest") for publication in (last, *last.lost))
    path = next(filter(None, paths), None)  # none if an empty folder was accepted before anything was lost there
    shown = [each for each in _shown(on, target, path) if not manifest.is_given_up(each)] if path else []
    if not shown:
        return Publication(0, 0, {"target": target})
    newest = max(shown, key=lambda each: int(each["decision"]))
    txn = confined.parsed(newest["txn"])
    assert txn is not None  # `read_ours` has checked it
    return Publication(txn.epoch, int(newest["decision"]), proof(target, confined.manifest_of(txn), newest))


def _exists(on: FileSystem, target: str) -> bool:
    """An object store has no folders: there, it exists as soon as something is in it."""
    return on.exists(target) or bool(on.names(target))


def _is_replaced(on: FileSystem, target: str, path: str) -> bool:
    """Whether a later manifest says that it replaces this one. Its commit removes this one before that is recorded."""
    name = path.rpartition("/")[2]
    later = [other for other in _stream(on, target, path) if manifest.epoch(other) > manifest.epoch(name)]
    contents = (manifest.read_ours(on, f"{target}/{MANIFESTS}/{other}") for other in later)
    return any(name in content.get("replaces", ()) for content in contents if content)


def _shown(on: FileSystem, target: str, path: str) -> list[manifest.Manifest]:
    """The newest manifests of a publication's pipeline, sink and state table."""
    names = _stream(on, target, path)[-LOOKED_AT:]
    contents = (manifest.read_ours(on, f"{target}/{MANIFESTS}/{name}") for name in names)
    return [content for content in contents if content]


def _stream(on: FileSystem, target: str, path: str) -> list[str]:
    """The names of all manifests of that pipeline, sink and state table, by epoch."""
    pipeline, sink, _, state = path.rpartition("/")[2].split("-")
    names = [name for name in on.names(f"{target}/{MANIFESTS}") if confined.is_published(f"{MANIFESTS}/{name}")]
    same = [name for name in names if name.split("-")[:2] == [pipeline, sink] and name.split("-")[3] == state]
    return sorted(same, key=manifest.epoch)
