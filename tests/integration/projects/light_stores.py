"""A file sink on an object store that stages without Spark, and how a reader that is not ours sees its folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest
from unit.lightfiles import schema_of

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.checkpoint.transaction_names import manifest_path
from onceonly.pipeline.sinks import FileSink
from onceonly.sinks.files import stage
from onceonly.sinks.files.handle import staging_of
from onceonly.sinks.files.sink import FileWriter
from onceonly.storage.own_paths import OwnPath

pytest.importorskip("botocore", reason="pip install 'onceonly[stores]'")


class LightStoreFiles(FileWriter):
    """JSON lines; `files` files in each checkpoint, in folders by their number."""

    def __init__(self, uri: str, name: str = "lake", files: int = 1) -> None:
        super().__init__(FileSink(name, uri, "json"), uri)
        self.files = files

    def stage(self, txn: Transaction, rows: Iterable[Any]) -> Handle:
        given = [row if isinstance(row, dict) else {"n": row} for row in rows]
        stage.check(self.config, self._file_system, self._target)
        folder = OwnPath(staging_of(self._target), txn.name)
        self._file_system.probe(folder, self._target)
        data = folder.join("data").path
        files = min(self.files, len(given))
        for number in range(files):
            lines = "".join(f"{json.dumps(row)}\n" for row in given[number::files])
            place = f"part={number}/" if self.files > 1 else ""
            self._file_system.write(f"{data}/{place}part-{number:05d}.jsonl", lines)
        found = stage.prepare_files(self.config, txn, self._file_system, self._target, data, len(given))
        return {
            **{"kind": "files", "target": self._target, "format": "json", "txn": txn.name},
            **{"folder": data, "manifest": manifest_path(txn), "rows": len(given), "bytes": 1},
            "files": [file.to_json() for file in found],
            "partition_by": [],
            "schema": schema_of(given[0] if given else {"n": 0}),
        }


class Reader:
    """What a store shows to the client of delta-rs, where ours is another one; `root`: of a bucket."""

    def __init__(self, root: str) -> None:
        self.root = root

    def keys(self, prefix: str) -> list[str]:
        import obstore

        return sorted(entry["path"] for page in obstore.list(self._store, prefix) for entry in page)

    def content(self, key: str) -> bytes:
        import obstore

        return bytes(obstore.get(self._store, key).bytes())

    def text(self, key: str) -> str:
        return self.content(key).decode()

    def put(self, key: str, text: str) -> None:
        import obstore

        obstore.put(self._store, key, text.encode())

    def delete(self, key: str) -> None:
        import obstore

        obstore.delete(self._store, key)

    def uploads(self, prefix: str) -> list[tuple[str, str]]:
        return []

    def numbers(self, prefix: str, field: str = "n") -> list[int]:
        """As a plain reader of the folder finds them: of every file that is not hidden."""
        shown = [key for key in self.keys(prefix) if key.endswith(".jsonl") and "/." not in key and "/_" not in key]
        lines = (line for key in shown for line in self.text(key).splitlines())
        return sorted(json.loads(line)[field] for line in lines)

    @property
    def _store(self) -> Any:
        from obstore.store import from_url

        return from_url(self.root)


@cache
def client(endpoint: str, region: str) -> Any:
    """boto's own client, as anybody has it."""
    from botocore import session

    return session.get_session().create_client("s3", region_name=region, endpoint_url=endpoint)


class Store(Reader):
    """What the S3 server of the environment shows."""

    def __init__(self, bucket: str) -> None:
        super().__init__(f"s3://{bucket}")
        self.client, self.bucket = client(os.environ["AWS_ENDPOINT_URL"], os.environ["AWS_REGION"]), bucket

    def keys(self, prefix: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return sorted(entry["Key"] for page in pages for entry in page.get("Contents", ()))

    def content(self, key: str) -> bytes:
        return bytes(self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read())

    def uploads(self, prefix: str) -> list[tuple[str, str]]:
        told = self.client.list_multipart_uploads(Bucket=self.bucket, Prefix=prefix)
        return [(upload["Key"], upload["UploadId"]) for upload in told.get("Uploads", ())]

    def abort_all(self, prefix: str) -> int:
        found = self.uploads(prefix)
        for key, id in found:
            self.client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=id)
        return len(found)


def reader(root: str) -> Reader:
    """Of a bucket."""
    return Store(root.removeprefix("s3://")) if root.startswith("s3://") else Reader(root)
