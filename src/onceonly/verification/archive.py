"""The results of verifications: a Delta table inside the folder of the state table, to which each one appends a row.

It is beside the tables of the pipelines, so whoever moves or copies the state table takes it along. No step decides by
it: a result that is lost costs what could be known at that time, and no row of a target.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceonly.errors import NotCommitted
from onceonly.storage.paths import local_path
from onceonly.verification.encoding import read_right
from onceonly.verification.verify import EarlierResult
from onceonly.waits import wait_for

if TYPE_CHECKING:
    from deltalake import DeltaTable

FOLDER = "_verifications"  # hidden, as `_pipelines` is: a VACUUM of the table above it leaves it alone
SUMMARY = "pipeline, at, judgement, right_until, right_count, wrong_count, unknown_count"
MAX_SMALL_FILES = 200  # results, each a file, after which they are merged


@dataclass(frozen=True)
class LastResult:
    """What the last verification of a pipeline has found, in one line.

    Args:
        right_until: up to when everything is right, now or when it was last checked; None: the first is not.
    """

    pipeline: str
    at: datetime
    judgement: str
    right_until: datetime | None
    right_count: int
    wrong_count: int
    unknown_count: int


class Archive:
    """The results that belong to a state table."""

    def __init__(self, state_uri: str) -> None:
        self.uri = f"{state_uri.rstrip('/')}/{FOLDER}"

    def append(self, data: Mapping[str, Any]) -> None:
        """Add the result of a verification, as `encoding.to_json` returns it.

        Raises:
            NotCommitted: it could not be written.
        """
        import pyarrow as pa
        from deltalake import write_deltalake

        schema = _make_schema()
        arrays = []
        for name, value in _make_row(data).items():
            arrays.append(pa.array([value], schema.field(name).type))
        row = pa.Table.from_arrays(arrays, schema=schema)
        try:
            with wait_for(f"the table of verifications at {self.uri}"):
                local = local_path(self.uri)
                if local:
                    local.mkdir(exist_ok=True)
                write_deltalake(self.uri, row, mode="append")
                self._merge_files()
        except Exception as error:
            raise NotCommitted(
                f"the result of this verification could not be added to {self.uri}.",
                f"{type(error).__name__}: {error}"[:500],
                "What it has found is shown all the same. Make the folder writable, and verify again.",
                code="verification-not-recorded",
            ) from error

    def read_earlier(self, pipeline: str) -> list[EarlierResult]:
        """Return what earlier verifications of the pipeline have found right, oldest first."""
        earlier = []
        for record in self._query(f"SELECT detail FROM state WHERE {_is(pipeline)} ORDER BY at"):
            data = json.loads(record["detail"])
            at = datetime.fromisoformat(data["at"])
            row = data["seq"], data["row_id"]
            earlier.append(EarlierResult(at, data["version"], data["deep"], *row, read_right(data)))
        return earlier

    def read_last(self, pipeline: str) -> dict[str, Any] | None:
        """Return the last result of a pipeline, as `encoding.to_json` has made it; None: it was never verified."""
        records = self._query(f"SELECT detail FROM state WHERE {_is(pipeline)} ORDER BY at DESC LIMIT 1")
        return json.loads(records[0]["detail"]) if records else None

    def read_summaries(self) -> dict[str, LastResult]:
        """Return the last result of each pipeline that was ever verified, by its name."""
        ranked = f"SELECT {SUMMARY}, row_number() OVER (PARTITION BY pipeline ORDER BY at DESC) AS n FROM state"
        results = {}
        for record in self._query(f"SELECT {SUMMARY} FROM ({ranked}) WHERE n = 1"):
            results[record["pipeline"]] = LastResult(**record)
        return results

    def _query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query; none where nothing was ever verified."""
        table = self._open()
        if table is None:
            return []
        from onceonly.statetable.query import run  # with delta-rs

        records: list[dict[str, Any]] = run(table, sql).to_pylist()
        return records

    def _open(self) -> DeltaTable | None:
        local = local_path(self.uri)
        if local and not (Path(local) / "_delta_log").is_dir():
            return None  # so that `onceonly status` starts fast: nothing was ever verified
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            with wait_for(f"the table of verifications at {self.uri}"):
                return DeltaTable(self.uri)
        except TableNotFoundError:
            return None

    def _merge_files(self) -> None:
        table = self._open()
        if table and len(table.file_uris()) > MAX_SMALL_FILES:
            table.optimize.compact()


def _is(pipeline: str) -> str:
    return "pipeline = '" + pipeline.replace("'", "''") + "'"


def _make_schema() -> Any:
    import pyarrow as pa

    time = pa.timestamp("us", tz="UTC")
    return pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("pipeline", pa.string(), nullable=False),
            pa.field("at", time, nullable=False),
            pa.field("version", pa.string(), nullable=False),
            pa.field("deep", pa.bool_(), nullable=False),
            pa.field("since", time),
            pa.field("seconds", pa.float64(), nullable=False),
            pa.field("state_id", pa.string(), nullable=False),
            pa.field("judgement", pa.string(), nullable=False),
            pa.field("right_until", time),
            pa.field("right_count", pa.int64(), nullable=False),
            pa.field("wrong_count", pa.int64(), nullable=False),
            pa.field("unknown_count", pa.int64(), nullable=False),
            pa.field("detail", pa.string(), nullable=False),
        ]
    )


def _make_row(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a result: what is asked for often, and all of it as JSON."""
    counts = data["checkpoints"]
    return {
        "id": data["id"],
        "pipeline": data["pipeline"],
        "at": datetime.fromisoformat(data["at"]),
        "version": data["version"],
        "deep": data["deep"],
        "since": _parse(data["since"]),
        "seconds": data["seconds"],
        "state_id": data["state_id"],
        "judgement": data["judgement"],
        "right_until": _parse(data["verified_right_until"]),
        "right_count": counts["right"],
        "wrong_count": counts["wrong"],
        "unknown_count": counts["unknown"],
        "detail": json.dumps(data, ensure_ascii=False),
    }


def _parse(time: str | None) -> datetime | None:
    return datetime.fromisoformat(time) if time else None
