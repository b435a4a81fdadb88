"""The Iceberg sink passes the suite that every sink has to pass."""

from pathlib import Path

import pytest
from iceberg_damages import ICEBERG_BREAKS, ICEBERG_DAMAGES
from iceberg_tables import IcebergTarget, create_table, numbers

from onceonly.testing import contract
from onceonly.testing.contract import Rows, SinkContract


class TestIceberg(SinkContract):
    breaks = ICEBERG_BREAKS
    damages = ICEBERG_DAMAGES

    @pytest.fixture
    def target(self, tmp_path: Path) -> contract.Target:
        folder = tmp_path / "lake"
        create_table(folder)
        return IcebergTarget(str(folder))

    @pytest.fixture
    def make_rows(self) -> Rows:
        return numbers


@pytest.mark.heavy
class TestBranch(TestIceberg):
    """Publishes to a branch that the first publication makes."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> contract.Target:
        folder = tmp_path / "lake"
        create_table(folder)
        return IcebergTarget(str(folder), "audit")
