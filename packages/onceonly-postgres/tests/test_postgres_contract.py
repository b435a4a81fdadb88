"""The sink passes the suite that every sink has to pass, on a real server."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest
from arrow_rows import ArrowRows, number_rows
from contract.parts import BROKEN_ON_SPARK, WRITTEN_BY_SPARK
from contract.spark_rows import OnSpark
from integration.services.postgres import Postgres
from targets import BREAKS, DAMAGES, MARKED_DAMAGES, NumberTable, marked_table, merged_table, plain_table

from onceonly.testing.contract import Rows, SinkContract

pytestmark = pytest.mark.integration


def new_name() -> str:
    return f"numbers_{uuid.uuid4().hex[:12]}"


class InProcess(SinkContract):
    """Rows are staged by the function that Spark's workers run, each partition twice."""

    breaks = BREAKS
    damages = DAMAGES

    @pytest.fixture
    def make_rows(self) -> Rows:
        return number_rows


class TestAppend(InProcess):
    part = BROKEN_ON_SPARK

    @pytest.fixture
    def target(self, database: Postgres) -> NumberTable:
        return plain_table(database.port, new_name())


class TestMarked(InProcess):
    """Its rows can be taken back."""

    damages = MARKED_DAMAGES

    @pytest.fixture
    def target(self, database: Postgres) -> NumberTable:
        return marked_table(database.port, new_name())


class TestMerge(InProcess):
    part = BROKEN_ON_SPARK

    @pytest.fixture
    def target(self, database: Postgres) -> NumberTable:
        return merged_table(database.port, new_name())

    @pytest.fixture
    def make_rows(self) -> Rows:
        def make(*numbers: int) -> Any:
            ats = pa.array([1] * len(numbers), pa.int32())
            return ArrowRows(pa.table({"n": pa.array(numbers, pa.int32()), "at": ats}), lost_attempts=1)

        return make


class TestOnSpark(OnSpark):
    """Rows are staged by Spark's workers, which read them for a gate, too."""

    breaks = BREAKS
    part = WRITTEN_BY_SPARK - {"test_commits_from_several_processes_and_threads_at_once_publish_once"}

    @pytest.fixture
    def target(self, database: Postgres) -> NumberTable:
        return marked_table(database.port, new_name())
