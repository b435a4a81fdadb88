"""The manifest of a checkpoint: the list of its files for readers, and the evidence of its outcome.

By the manifest of its last publication, a folder shows that it still has what was published to it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from onceonly.checkpoint.sink import Answer, History, Publication, Trace
from onceonly.checkpoint.transaction_names import manifest_path, parse_transaction
from onceonly.sinks.files.errors import NameTaken
from onceonly.sinks.files.handle import FileHandle, fingerprint_json
from onceonly.storage.interface import FileSystem, has_folder, parent
from onceonly.storage.own_paths import MANIFESTS, OwnPath, has_published_name

Manifest = Mapping[str, Any]
MAX_TRACE_MANIFESTS = 8  # manifests that are read for a trace
MAX_HISTORY_MANIFESTS = 64  # manifests that are read for the last decision that a folder shows


def build(handle: FileHandle, decision: int) -> Manifest:
    """Return the manifest that a commit writes."""
    manifest = _common_fields(handle, decision)
    manifest["rows"] = handle.rows
    manifest["files"] = [{"path": file.final, **fingerprint_json(file.fingerprint)} for file in handle.files]
    if handle.schema:
        manifest["schema"] = handle.schema
    replaced = [publication.manifest.rpartition("/")[2] for publication in handle.replaced]
    if replaced:
        manifest["replaces"] = replaced
    return manifest


def build_given_up(handle: FileHandle, decision: int) -> Manifest:
    """Return a manifest without files. What it would have replaced stays published."""
    return {**_common_fields(handle, decision), "rows": 0, "files": [], "given_up": True}


def _common_fields(handle: FileHandle, decision: int) -> dict[str, Any]:
    """Return what every manifest begins with.

    `at` is its time. In the order of the decisions it may go backward, where clocks differ or do.
    """
    at = datetime.now(UTC).isoformat()
    return {"version": 1, "txn": handle.txn.name, "decision": decision, "at": at, "format": handle.format}


def is_given_up(manifest: Manifest) -> bool:
    return bool(manifest.get("given_up"))


def list_paths(manifest: Manifest) -> set[str]:
    """Return the paths in the target of the files that a manifest lists."""
    return {file["path"] for file in manifest["files"]}


def to_text(content: Manifest) -> str:
    """Return the text of a manifest."""
    return json.dumps(content, indent=1) + "\n"


def digest(content: Manifest) -> str:
    """Return the SHA-256 of a manifest's file."""
    return hashlib.sha256(to_text(content).encode()).hexdigest()


def epoch(name: str) -> int:
    """Return the epoch in a manifest's name."""
    return int(name.split("-")[2])


def read(file_system: FileSystem, path: str) -> Manifest | None:
    """Return the manifest; None if there is none.

    Raises:
        NameTaken: the file is not a manifest of ours.
    """
    try:
        content = json.loads(file_system.read(path))
    except FileNotFoundError:
        return None
    except (ValueError, IsADirectoryError):
        content = None
    txn = parse_transaction(content.get("txn")) if isinstance(content, dict) else None
    if txn is None or not path.endswith(f"/{manifest_path(txn)}"):
        raise NameTaken(path)
    return dict(content)


def read_ours(file_system: FileSystem, path: str) -> Manifest | None:
    """Return the manifest; None if there is none, or the file is not a manifest of ours."""
    with suppress(NameTaken):
        return read(file_system, path)
    return None


def write(file_system: FileSystem, path: str, content: Manifest, folder: OwnPath) -> Manifest | None:
    """Write the manifest in one step, unless `folder` was removed: the outcome was recorded, or is that of an abort.

    Returns:
        The manifest that already existed; None if this one was written.
    Raises:
        NameTaken: the file that existed is not a manifest of ours.
    """
    manifests = parent(path)
    file_system.make_folder(manifests, parent(manifests))
    try:
        file_system.create(path, to_text(content), folder)
    except FileExistsError:
        existing = read(file_system, path)
        if existing:
            return existing
        raise OSError(f"{path} existed and no longer does") from None
    finally:
        file_system.sync_names(manifests)
    return None


def traces(file_system: FileSystem, target: str, pipeline: str, sink: str) -> list[Trace]:
    """Return the last decision of each state table, from the manifests of its last epochs.

    Reading a few is enough: only intervals that run in parallel are decided in another order than that of their epochs.
    """
    traces_by_table = []
    for names in _list_by_table(file_system, target, pipeline, sink).values():
        newest = _read_all(file_system, target, names[-MAX_TRACE_MANIFESTS:])
        if newest:
            state_id = str(newest[-1]["txn"]).split("-")[0]
            decision = max(int(manifest.get("decision", 0)) for manifest in newest)
            traces_by_table.append(Trace(state_id, decision, f"folder {target}", epoch=epoch(names[-1])))
    return traces_by_table


def proof(target: str, path: str, content: Manifest) -> dict[str, str]:
    """Return a publication's proof: its target, its manifest, and the SHA-256 of that file."""
    return {"target": target, "manifest": path, "sha256": digest(content)}


def compare(file_system: FileSystem, target: str, last: Publication) -> History:
    """Look for the manifest of the last publication, or for one that replaces it.

    The manifest tells, and not the path: the folder may be mounted in another place by now.
    """
    path = last.proof.get("manifest")
    if path is None:  # a person has accepted an empty folder
        return _answer_for(file_system, target, last, has_folder(file_system, target))
    content = read_ours(file_system, f"{target}/{path}")
    is_same = content is not None and digest(content) == last.proof["sha256"]
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
    if path is None or not has_folder(file_system, target):
        return History(Answer.WENT_BACK, f"the folder {target} does not exist; perhaps its volume is not mounted")
    if file_system.exists(f"{target}/{path}"):
        why = f"{target}/{path} has other content than decision {last.decision} has written"
    else:
        why = f"{target}/{path} does not exist, and decision {last.decision} has published it"
    earlier_decision = 0
    for content in _read_newest(file_system, target, path):
        decision = int(content.get("decision", 0))
        if decision < last.decision:
            earlier_decision = max(earlier_decision, decision)
    return History(Answer.WENT_BACK, why, earlier_decision)


def find_current_publication(file_system: FileSystem, target: str, last: Publication) -> Publication | None:
    """Return the last publication of the same pipeline, sink and state table that the folder shows.

    Returns:
        None: the folder does not exist. With decision 0: it has no such publication.
    """
    if not has_folder(file_system, target):
        return None
    paths = (publication.proof.get("manifest") for publication in (last, *last.lost))
    path = next(filter(None, paths), None)  # none if an empty folder was accepted before anything was lost there
    contents = _read_newest(file_system, target, path) if path else []
    published = [content for content in contents if not is_given_up(content)]
    if not published:
        return Publication(0, 0, {"target": target})
    newest = max(published, key=lambda content: int(content["decision"]))
    txn = parse_transaction(newest["txn"])
    assert txn is not None  # `read_ours` has checked it
    return Publication(txn.epoch, int(newest["decision"]), proof(target, manifest_path(txn), newest))


def _is_replaced(file_system: FileSystem, target: str, path: str) -> bool:
    """Return whether a later manifest replaces this one. Its commit removes this one before that is recorded."""
    replaced = path.rpartition("/")[2]
    for name in _list_stream(file_system, target, path):
        if epoch(name) <= epoch(replaced):
            continue
        content = read_ours(file_system, f"{target}/{MANIFESTS}/{name}")
        if content and replaced in content.get("replaces", ()):
            return True
    return False


def _read_newest(file_system: FileSystem, target: str, path: str) -> list[Manifest]:
    """Return the newest manifests of a publication's pipeline, sink and state table, by epoch."""
    return _read_all(file_system, target, _list_stream(file_system, target, path)[-MAX_HISTORY_MANIFESTS:])


def _list_stream(file_system: FileSystem, target: str, path: str) -> list[str]:
    """Return the names of all manifests of that one's pipeline, sink and state table, by epoch."""
    pipeline, sink, _, table = path.rpartition("/")[2].split("-")
    return _list_by_table(file_system, target, pipeline, sink).get(table, [])


def _list_by_table(file_system: FileSystem, target: str, pipeline: str, sink: str) -> dict[str, list[str]]:
    """Return the names of the manifests of a pipeline's sink, by the state table in them, each by epoch."""
    names_by_table: dict[str, list[str]] = {}
    for name in file_system.list_names(f"{target}/{MANIFESTS}"):
        if has_published_name(f"{MANIFESTS}/{name}") and name.split("-")[:2] == [pipeline, sink]:
            names_by_table.setdefault(name.split("-")[3], []).append(name)
    return {table: sorted(names, key=epoch) for table, names in names_by_table.items()}


def _read_all(file_system: FileSystem, target: str, names: Sequence[str]) -> list[Manifest]:
    """Return the manifests with these names that are there and ours, in that order."""
    manifests = []
    for name in names:
        manifest = read_ours(file_system, f"{target}/{MANIFESTS}/{name}")
        if manifest:
            manifests.append(manifest)
    return manifests
