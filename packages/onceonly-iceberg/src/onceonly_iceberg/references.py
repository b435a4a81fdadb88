"""What a table refers to: whether some snapshot has a file below a folder, and what a power failure must not take."""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from onceonly_iceberg.file_store import FileStore


def is_referred_to(table: Table, folder: str) -> bool:
    """Return whether some snapshot has a file below the folder, by its manifests. Asked only before a deletion."""
    looked_at: set[str] = set()
    for snapshot in table.metadata.snapshots:
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in looked_at:
                continue
            looked_at.add(manifest.manifest_path)
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                if entry.data_file.file_path.startswith(f"{folder}/"):
                    return True
    return False


def list_entries(table: Table, snapshot: Snapshot) -> Iterator[tuple[ManifestFile, ManifestEntry]]:
    """Yield every file of a snapshot, with the manifest that names it."""
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield manifest, entry


def sync(table: Table, snapshot_id: int) -> None:
    """On a local disk, let the table's metadata survive a power failure from now on."""
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    uris = [table.metadata_location]
    if snapshot is not None:
        uris.append(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io) if _is_local(snapshot.manifest_list) else []:
            if manifest.added_snapshot_id == snapshot_id:
                uris.append(manifest.manifest_path)
    FileStore(table).sync_uris(uris)


def _is_local(uri: str) -> bool:
    return uri.startswith(("/", "file:"))
