"""A folder of files on an object store: rows are staged without Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from integration.projects.light_stores import LightStoreFiles, Reader, reader

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.storage import manifests
from onceonly.testing.fakes import FakeReceipts

STATE = "0123456789abcdef0123456789abcdef"


def transaction(epoch: int = 1, attempt: int = 1) -> Transaction:
    return Transaction(STATE, "flights", "lake", epoch, attempt, f"nonce{epoch}{attempt}")


@dataclass(frozen=True)
class StoreLake:
    root: str  # of a bucket
    name: str

    @property
    def uri(self) -> str:
        return f"{self.root}/{self.name}/lake"

    @property
    def sink(self) -> LightStoreFiles:
        return LightStoreFiles(self.uri, files=2)

    @property
    def shown(self) -> Reader:
        return reader(self.root)

    def stage(self, epoch: int, *given: int, attempt: int = 1) -> Handle:
        handle: Handle = json.loads(json.dumps(self.sink.stage(transaction(epoch, attempt), given)))
        return handle

    def commit(self, handle: Handle, decision: int = 1) -> Outcome:
        return self.sink.commit(handle, decision, FakeReceipts(Path("unused")))

    def numbers(self) -> list[int]:
        return self.shown.numbers(f"{self.name}/lake/")

    def listed(self) -> list[int]:
        """What a reader by manifest finds."""
        texts = (self.shown.text(uri.removeprefix(f"{self.root}/")) for uri in manifests.files(self.uri))
        return sorted(json.loads(line)["n"] for text in texts for line in text.splitlines())

    def key(self, handle: Handle, number: int = 0) -> str:
        return f"{self.name}/lake/{handle['files'][number]['final']}"
