"""The suite on the file sink of a real S3 server; its rows are staged without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from integration.lights3 import LightS3Files, Store
from integration.s3 import BINARY, BUCKET, MISSING, S3

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.sink import Sink
from onceonly.testing.contract import Rows, SinkContract, Stage, Target

pytestmark = [pytest.mark.integration, pytest.mark.skipif(BINARY is None, reason=MISSING)]
numbers = count()


@dataclass(frozen=True)
class Files(Target):
    name: str
    shows_each = True

    def sink(self) -> Sink:
        return LightS3Files(f"s3://{BUCKET}/{self.name}/out", files=2)

    def published(self) -> list[int]:
        return Store(BUCKET).numbers(f"{self.name}/out/")

    def traces(self, txn: Transaction) -> list[Any]:
        """Objects, and uploads that are open."""
        store, prefix = Store(BUCKET), f"{self.name}/"
        return [key for key in store.keys(prefix) if txn.name in key] + store.uploads(prefix)


class TestFiles(SinkContract):
    @pytest.fixture
    def target(self, s3: S3, monkeypatch: pytest.MonkeyPatch) -> Target:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        return Files(f"files-contract-{next(numbers)}")

    @pytest.fixture
    def make_rows(self) -> Rows:
        return lambda *numbers: numbers

    @pytest.mark.parametrize("some", [(1, 2, 3)])
    def test_what_is_staged_can_be_looked_at_here_and_on_spark(
        self, target: Target, stage: Stage, session: Any, some: tuple[int, ...]
    ) -> None:
        """Not of no rows: this stage writes no file then."""
        super().test_what_is_staged_can_be_looked_at_here_and_on_spark(target, stage, session, some)
