"""What the contract of sinks has in common on Spark: rows of numbers, targets that are folders."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from onceonly.checkpoint.model import Transaction
from onceonly.testing import contract
from onceonly.testing.contract import Rows, SinkContract


def no_spark() -> Any:
    raise AssertionError("publishing and aborting need no Spark here")


@dataclass(frozen=True)
class Folder(contract.Target):
    """What lies in a folder; its staged rows are beside it, or in it."""

    folder: str

    def traces(self, txn: Transaction) -> list[Any]:
        return [path for path in Path(self.folder).parent.rglob("*") if txn.name in path.name]


class OnSpark(SinkContract):
    @pytest.fixture
    def session(self, spark: Any) -> Any:
        return spark

    @pytest.fixture
    def make_rows(self, session: Any) -> Rows:
        return lambda *numbers: session.createDataFrame([(number,) for number in numbers], "n INT")
