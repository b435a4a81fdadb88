"""Whether a folder still has what was published to it, by the manifest of the last publication."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onceonly.checkpoint.sink import Answer, History, Publication
from onceonly.checkpoint.transaction_names import manifest_path, parse_transaction
from onceonly.sinks.files import manifest, moves
from onceonly.storage.interface import FileSystem
from onceonly.storage.own_paths import MANIFESTS, has_published_name

MAX_HISTORY_MANIFESTS = 64  # manifests that are read for the last decision that a folder shows


def proof(target: str, path: str, content: Mapping[str, Any]) -> dict[str, str]:
    """Return a publication's proof: its target, its manifest, and the SHA-256 of that file."""
    return {"target": target, "manifest": path, "sha256": moves.digest(content)}


def compare(file_system: FileSystem, target: str, last: Publication) -> History:
    """Look for the manifest of the last publication, or for one that replaces it.

    The manifest tells, and not the path: the folder may be mounted in another place by now.
    """
    path = last.proof.get("manifest")
    if path is None:  # a person has accepted an empty folder
        return _answer_for(file_system, target, last, _exists(file_system, target))
    content = manifest.read_ours(file_system, f"{target}/{path}")
    is_same = content is not None and moves.digest(content) == last.proof["sha256"]
    return _answer_for(file_system, target, last, is_same or _is_replaced(file_system, target, path))


def _answer_for(file_system: FileSystem, target: str, last: Publication, is_same: bool) -> History:
    """Return the answer to `compare`. A target with another path that shows nothing is taken for another folder."""
    if is_same:
        return History(Answer.SAME)
    if not file_system.is_same_folder(str(last.proof["target"]), target):
        return History(Answer.ELSEWHERE, f"it was published to {last.proof['target']}, and this is {target}")
    return _describe_loss(file_system, target, last)


def _describe_loss(file_system: FileSystem, target: str, last: Publication) -> History:
    """Say what the target lacks, with the last decision before it that the target still shows (0: none)."""
    path = last.proof.get("manifest")
    if path is None or not _exists(file_system, target):
        return History(Answer.WENT_BACK, f"the folder {target} does not exist; perhaps its volume is not mounted")
    if file_system.exists(f"{target}/{path}"):
        why = f"{target}/{path} has other content than decision {last.decision} has written"
    else:
        why = f"{target}/{path} does not exist, and decision {last.decision} has published it"
    contents = _read_newest(file_system, target, path)
    earlier = [content for content in contents if int(content.get("decision", 0)) < last.decision]
    return History(Answer.WENT_BACK, why, max((int(content["decision"]) for content in earlier), default=0))


def proof_now(file_system: FileSystem, target: str, last: Publication) -> Publication | None:
    """Return the last publication of the same pipeline, sink and state table that the folder shows.

    Returns:
        None: the folder does not exist. With decision 0: it has no such publication.
    """
    if not _exists(file_system, target):
        return None
    paths = (publication.proof.get("manifest") for publication in (last, *last.lost))
    path = next(filter(None, paths), None)  # none if an empty folder was accepted before anything was lost there
    contents = _read_newest(file_system, target, path) if path else []
    published = [content for content in contents if not manifest.is_given_up(content)]
    if not published:
        return Publication(0, 0, {"target": target})
    newest = max(published, key=lambda content: int(content["decision"]))
    txn = parse_transaction(newest["txn"])
    assert txn is not None  # `read_ours` has checked it
    return Publication(txn.epoch, int(newest["decision"]), proof(target, manifest_path(txn), newest))


def _exists(file_system: FileSystem, target: str) -> bool:
    """Return whether the folder exists. An object store has none: there, it does as soon as something is in it."""
    return file_system.exists(target) or bool(file_system.list_names(target))


def _is_replaced(file_system: FileSystem, target: str, path: str) -> bool:
    """Return whether a later manifest replaces this one. Its commit removes this one before that is recorded."""
    replaced = path.rpartition("/")[2]
    for name in _list_stream(file_system, target, path):
        if manifest.epoch(name) <= manifest.epoch(replaced):
            continue
        content = manifest.read_ours(file_system, f"{target}/{MANIFESTS}/{name}")
        if content and replaced in content.get("replaces", ()):
            return True
    return False


def _read_newest(file_system: FileSystem, target: str, path: str) -> list[manifest.Manifest]:
    """Return the newest manifests of a publication's pipeline, sink and state table, by epoch."""
    contents = []
    for name in _list_stream(file_system, target, path)[-MAX_HISTORY_MANIFESTS:]:
        content = manifest.read_ours(file_system, f"{target}/{MANIFESTS}/{name}")
        if content:
            contents.append(content)
    return contents


def _list_stream(file_system: FileSystem, target: str, path: str) -> list[str]:
    """Return the names of all manifests of that pipeline, sink and state table, by epoch."""
    pipeline, sink, _, state = path.rpartition("/")[2].split("-")
    stream = []
    for name in file_system.list_names(f"{target}/{MANIFESTS}"):
        if not has_published_name(f"{MANIFESTS}/{name}"):
            continue
        parts = name.split("-")
        if parts[:2] == [pipeline, sink] and parts[3] == state:
            stream.append(name)
    return sorted(stream, key=manifest.epoch)
