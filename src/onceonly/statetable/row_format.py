"""A row of the state table as a record of JSON values, and the head that each row carries for the next.

A commit of a pipeline's log holds its row as such a record. The same columns are in the Parquet files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from onceonly.checkpoint.model import FORMAT, Checkpoint, Event, Row
from onceonly.checkpoint.offsets import Interval
from onceonly.checkpoint.sink import Publication
from onceonly.errors import InvalidPipeline
from onceonly.json_values.text import canonical
from onceonly.unix_time import MICROSECOND, UNIX_EPOCH

if TYPE_CHECKING:
    import pyarrow as pa

# name -> (Delta type, may be null); `head` and `body` are JSON
COLUMNS: Mapping[str, tuple[str, bool]] = {
    "format": ("integer", False),
    "id": ("string", False),
    "pipeline": ("string", False),
    "seq": ("long", False),
    "at": ("timestamp", False),
    "epoch": ("long", False),
    "event": ("string", False),
    "attempt": ("integer", False),
    "owner": ("string", True),
    "sink": ("string", True),
    "decision": ("long", True),
    "interval_start": ("timestamp", True),
    "interval_end": ("timestamp", True),
    "head": ("string", False),
    "body": ("string", False),
}
MAX_TARGETS = 16  # of one sink, whose last publications are kept in the head
TIMES = [name for name, (type_, _) in COLUMNS.items() if type_ == "timestamp"]


@dataclass(frozen=True)
class Head:
    """What a pipeline's last row contains for its next writer, which therefore need not read the history."""

    seq: int = 0
    changed: int = 0  # seq of the last row that is not a heartbeat
    epoch: int = 0  # last one issued
    chain: int = 0  # the last epoch that is no repair: from it the next checkpoint continues
    decision: int = 0  # last one taken
    latest: int = 0  # seq of the first row of the last epoch
    open: Mapping[int, int] = field(default_factory=dict)  # unsettled epoch -> seq of its first row
    publications: Mapping[str, tuple[Publication, ...]] = field(default_factory=dict)  # by sink and target
    missing: Mapping[str, int] = field(default_factory=dict)  # by sink: how many checkpoints its target has lost
    reappeared: Mapping[str, int] = field(
        default_factory=dict
    )  # by sink: how many it shows again, not said to the end yet
    unfit: tuple[int, ...] = ()  # epochs that have to be staged again, and that nobody has taken up

    @property
    def last_publications(self) -> Mapping[str, Publication]:
        """The last publication of each sink that has one."""
        last_publications = {}
        for sink in self.publications:
            publications = self.published_to(sink)
            if publications:
                last_publications[sink] = publications[0]
        return last_publications

    def published_to(self, sink: str) -> tuple[Publication, ...]:
        """Return the sink's last publication in each target that it has had and that exists, the newest first."""
        publications = self.publications.get(sink, ())
        return tuple(publication for publication in publications if not publication.absent)

    def apply(self, row: Row, checkpoint: Checkpoint) -> Head:
        """Return the head once `row` has led to `checkpoint`."""
        open_ = dict(self.open)
        open_.pop(row.epoch, None)
        if not checkpoint.state.is_settled:
            open_[row.epoch] = checkpoint.first_seq
        return Head(
            seq=row.seq,
            changed=self.changed if row.event is Event.RENEWED else row.seq,
            epoch=max(self.epoch, row.epoch),
            chain=self.chain if checkpoint.is_repair else max(self.chain, row.epoch),
            decision=max(self.decision, row.decision or 0),
            latest=row.seq if row.epoch > self.epoch else self.latest,
            open=open_,
            publications=self._publications_after(row),
            missing=self._missing_after(row),
            reappeared=self._reappeared_after(row),
            unfit=self._unfit_after(checkpoint),
        )

    def _publications_after(self, row: Row) -> Mapping[str, tuple[Publication, ...]]:
        """Return the publications once `row` is written: a new one comes first, in place of that of the same target.

        A publication without a proof says nothing of its target, so the one before it stays.
        """
        sink = row.sink or ""
        if row.event is Event.PUBLISHED and row.body.get("proof"):
            new = Publication(row.epoch, row.decision or 0, row.body["proof"])
        elif row.event is Event.ACCEPTED:
            new = Publication(**row.body["baseline"])
        else:
            return self.publications
        publications = [new]
        for publication in self.publications.get(sink, ()):
            if publication.target != new.target:
                publications.append(publication)
        return {**self.publications, sink: tuple(publications[:MAX_TARGETS])}

    def _missing_after(self, row: Row) -> Mapping[str, int]:
        if row.event not in (Event.MISSING, Event.FOUND) or not row.sink:
            return self.missing
        numbers = dict(self.missing)
        number = numbers.pop(row.sink, 0)
        if row.event is Event.MISSING:
            number += 1
        else:
            number -= 1
        if number:
            numbers[row.sink] = number
        return numbers

    def _reappeared_after(self, row: Row) -> Mapping[str, int]:
        """Return by sink the rows FOUND since the last row ACCEPTED, which says from where the sink continues."""
        if row.event not in (Event.FOUND, Event.ACCEPTED) or not row.sink:
            return self.reappeared
        numbers = dict(self.reappeared)
        number = numbers.pop(row.sink, 0)
        if row.event is Event.FOUND:
            numbers[row.sink] = number + 1
        return numbers

    def _unfit_after(self, checkpoint: Checkpoint) -> tuple[int, ...]:
        epochs = tuple(epoch for epoch in self.unfit if epoch != checkpoint.epoch)
        if checkpoint.has_to_be_staged_again and checkpoint.state.is_settled:
            return (*epochs, checkpoint.epoch)
        return epochs

    def to_json(self) -> dict[str, Any]:
        """Return the head as it is stored in a row; what is empty is left out, but for `open`."""
        head: dict[str, Any] = {
            "seq": self.seq,
            "changed": self.changed,
            "epoch": self.epoch,
            "decision": self.decision,
            "latest": self.latest,
            "open": {str(epoch): seq for epoch, seq in self.open.items()},
        }
        if self.chain != self.epoch:
            head["chain"] = self.chain
        if self.publications:
            head["published"] = {}
            for sink, publications in self.publications.items():
                head["published"][sink] = list(map(publication_json, publications))
        if self.missing:
            head["missing"] = dict(self.missing)
        if self.reappeared:
            head["reappeared"] = dict(self.reappeared)
        if self.unfit:
            head["unfit"] = list(self.unfit)
        return head

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Head:
        """Return the head of a row: the inverse of `to_json`."""
        columns = dict(data)
        open_ = {int(epoch): seq for epoch, seq in columns.pop("open").items()}
        publications = {}
        for sink, publications_json in columns.pop("published", {}).items():
            publications[sink] = tuple(Publication(**publication) for publication in publications_json)
        unfit = tuple(columns.pop("unfit", ()))
        columns.setdefault("chain", columns["epoch"])
        return cls(**columns, open=open_, publications=publications, unfit=unfit)


def publication_json(publication: Publication) -> dict[str, Any]:
    """Return the publication as a head and a body store it."""
    columns = {"epoch": publication.epoch, "decision": publication.decision, "proof": dict(publication.proof)}
    if publication.absent:
        columns["absent"] = True
    return columns


def schema_json() -> str:
    """Return the columns as the schema of a Delta table, in JSON."""
    fields = []
    for name, (type_, nullable) in COLUMNS.items():
        fields.append({"name": name, "type": type_, "nullable": nullable, "metadata": {}})
    return json.dumps({"type": "struct", "fields": fields})


@cache
def arrow_schema() -> pa.Schema:
    """Return the columns as a schema of Arrow. pyarrow is imported here, so that `onceonly status` starts fast."""
    import pyarrow as pa

    types = {
        "integer": pa.int32(),
        "long": pa.int64(),
        "string": pa.string(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    fields = []
    for name, (type_, nullable) in COLUMNS.items():
        fields.append(pa.field(name, types[type_], nullable=nullable))
    return pa.schema(fields)


def to_arrow(columns: Mapping[str, list[Any]]) -> pa.Table:
    """Return rows as a table of `arrow_schema`, from what `columns` returns."""
    import pyarrow as pa

    schema = arrow_schema()
    arrays = []
    for field_ in schema:
        arrays.append(_to_array(columns[field_.name], field_.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _to_array(values: list[Any], type_: pa.DataType) -> pa.Array:
    """Return the values as an array, by deltalake's own Arrow: pyarrow imports pandas to make one of a list.

    That takes longer than all else that a commit does here.
    """
    import arro3.core as arro3
    import pyarrow as pa

    if not pa.types.is_timestamp(type_):
        return pa.array(arro3.Array(values, type_))
    micros = [None if value is None else (value - UNIX_EPOCH) // MICROSECOND for value in values]
    return pa.array(arro3.Array(micros, pa.int64())).view(type_)


def columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return the values of the rows by column, as `record` has them."""
    values_by_column: dict[str, list[Any]] = {}
    for name in COLUMNS:
        values_by_column[name] = []
    for row in rows:
        for name, value in record(row).items():
            values_by_column[name].append(value)
    return values_by_column


def record(row: Row) -> dict[str, Any]:
    """Return the row by column; times are datetimes, `head` and `body` are JSON texts."""
    start, end = None, None
    if row.interval:
        start, end = row.interval.start, row.interval.end
    return {
        "format": row.format,
        "id": row.id,
        "pipeline": row.pipeline,
        "seq": row.seq,
        "at": row.at,
        "epoch": row.epoch,
        "event": row.event.value,
        "attempt": row.attempt,
        "owner": row.owner,
        "sink": row.sink,
        "decision": row.decision,
        "interval_start": start,
        "interval_end": end,
        "head": canonical(row.head),
        "body": canonical(row.body),
    }


def from_record(columns: Mapping[str, Any]) -> Row:
    """Return the row of a `record`.

    Raises:
        InvalidPipeline: a row of another format.
    """
    check_format(columns["format"])
    start, end = columns["interval_start"], columns["interval_end"]
    return Row(
        pipeline=columns["pipeline"],
        seq=columns["seq"],
        epoch=columns["epoch"],
        event=Event(columns["event"]),
        attempt=columns["attempt"],
        owner=columns["owner"],
        sink=columns["sink"],
        decision=columns["decision"],
        interval=Interval(start, end) if start else None,
        body=json.loads(columns["body"]),
        head=json.loads(columns["head"]),
        at=columns["at"],
        id=columns["id"],
        format=columns["format"],
    )


def to_text(row: Row) -> str:
    """Return the row as one JSON text; its times are ISO texts in UTC."""
    columns = record(row)
    for name in TIMES:
        columns[name] = _iso(columns[name])
    return canonical(columns)


def from_text(text: str) -> Row:
    """Return the row of a text from `to_text`.

    Raises:
        InvalidPipeline: a row of another format.
    """
    columns = json.loads(text)
    check_format(columns["format"])
    for name in TIMES:
        if columns[name]:
            columns[name] = datetime.fromisoformat(columns[name])
    return from_record(columns)


def check_format(row_format: int) -> None:
    """Refuse rows of another format, before they are read by the rules of this one. Raises InvalidPipeline."""
    if row_format != FORMAT:
        raise InvalidPipeline(
            "the state table was written by another version of Onceonly.",
            f"It holds rows of format {row_format}, and this version reads and writes format {FORMAT} only.",
            "Install the version that wrote them. Nothing was written.",
            code="state-row-format",
        )


def _iso(time: datetime | None) -> str | None:
    return time.astimezone(UTC).isoformat(timespec="microseconds") if time else None
