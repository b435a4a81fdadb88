"""Decoding of JSON in Python: on Spark's workers, or in this process where few records are read here.

Spark's own `from_json` alters what is not of the declared type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from onceonly import json_values
from onceonly.json_values.reader import VALUE, WHY, ReadOne, nullable, plain_reader, read_all, reader
from onceonly.spark import arrow

cloudpickle.register_pickle_by_value(json_values)  # type: ignore[no-untyped-call]  # so that workers need not have this package


@dataclass(frozen=True)
class JsonDecoder:
    """The decoder of a column of JSON.

    Args:
        type: of the rows, in the JSON form of Spark's types.
        part: the column, 'key' or 'value'.
        rules: where records begin with ids of a registry: what has to be followed, by id; see `framed_reader`. Workers
            need this package then.
    """

    type: Any
    part: str
    rules: tuple[tuple[int, str | None], ...] | None = None

    def decode(self, rows: DataFrame, why: str) -> DataFrame:
        """Return `rows` with the binary column decoded, and a text `why` it could not be.

        `why` is null where the column could be decoded, or is null.
        """
        if self.column not in rows.columns:  # a column of its own: used twice, and computed once
            rows = rows.withColumn(self.column, self._make_udf()(F.col(self.part)))
        decoded = F.col(self.column)
        return rows.withColumns({self.part: decoded[VALUE], why: decoded[WHY]}).drop(self.column)

    def decode_here(self, table: pa.Table) -> pa.Table:
        """Return the records with a further column `column`, which `decode` then takes."""
        make_reader = self._reader_factory()
        decoded = read_all(make_reader(), table[self.part].to_pylist(), nullable(self.type))
        return table.append_column(self.column, decoded)

    @property
    def column(self) -> str:
        return f"_onceonly_json_{self.part}"

    @property
    def column_type(self) -> StructType:
        value = StructType.fromJson(nullable(self.type))
        return StructType().add(VALUE, value).add(WHY, "string")

    def _reader_factory(self) -> Callable[[], ReadOne]:
        """Return a function that is sent to workers, where it makes the reader of one value."""
        type_, part, rules = self.type, self.part, self.rules  # so that the functions carry these, and not the decoder
        if rules is None:
            return lambda: reader(type_, part)

        def make_reader() -> ReadOne:
            from onceonly.kafka.registry.json_schema import framed_reader

            return framed_reader(type_, part, dict(rules))

        return make_reader

    def _make_udf(self) -> Callable[..., Column]:
        type_, make_reader = nullable(self.type), self._reader_factory()
        if not arrow.is_available():
            udf: Callable[..., Column] = F.udf(plain_reader(make_reader, type_), self.column_type, useArrow=False)
            return udf

        def read_batch(values: pa.Array) -> pa.Array:
            return read_all(make_reader(), values.to_pylist(), type_)

        return arrow.udf(read_batch, self.column_type)
