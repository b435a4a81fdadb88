"""Exact decoding of Avro: what is decoded was consumed to its last byte and stands for the same value, else it is bad.

Spark's decoder reads a value and ignores what follows. So the bytes are read a second time, by a schema that loses
nothing, with their own digest behind them: the digest is found where the value ends exactly if nothing
is left over. All of it is a column of Spark's own: no Python on the workers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from onceonly.kafka.registry import avro_schema
from onceonly.kafka.registry.avro_schema import Node
from onceonly.spark.text import is_valid
from onceonly.unix_time import FIRST_DAY, LAST_DAY

FRAME = "OnceonlyFrame"
DIGEST_SIZE = 32  # of md5 in hexadecimal
SECONDS = (FIRST_DAY * 86_400, (LAST_DAY + 1) * 86_400 - 1)  # of the years 1 to 9999, since 1970
INT = (-(1 << 31), (1 << 31) - 1)
PER_SECOND = {"millis": 1_000, "micros": 1_000_000}
AVRO_READ_OPTIONS = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}
SHORT_DECIMAL = 18  # digits that Spark keeps in eight bytes, to which it cuts what was written
UNREADABLE = "its bytes end before the record does, or do not match the schema"
LEFT_OVER = "bytes are left over, so it was written by another schema, or begins with the head of a schema registry"
SOUND: Mapping[str, object] = {"name": "sound", "type": "boolean", "default": True}  # there only if it could be read
NOT_A_VALUE = "It is not a value of the schema: %s."
UNRESOLVED = "it cannot become what the reader's schema asks for"
STRICT_FRAME, VALUE, END = "OnceonlyStrict", "value", "end"
MEMBER = "v"  # the only field of the record around a branch of a union
KEY, ITEM = "key", "item"  # fields of the record that stands for an entry of a map


def decode(payload: Column, writer: str, reader: str) -> Column:
    """Return a struct of `value`, decoded into the reader's type, and `why` it cannot be believed: a clause, or null.

    Args:
        payload: the bytes of one value; null gives a null value, and some text.
        writer, reader: schemas without references.
    Raises:
        avro_schema.Unusable: a schema cannot be used.
        avro_schema.Unfit: the reader's would take what was written for something else.
    """
    reader_tree = avro_schema.parse(reader)
    tree = avro_schema.resolve_writer(avro_schema.parse(writer), reader_tree)
    options = {**AVRO_READ_OPTIONS, "avroSchema": _frame_schema(avro_schema.with_plain_times(reader), SOUND)}
    framed = from_avro(payload, _frame_schema(avro_schema.with_plain_times(writer)), options)
    why_bad = _let(F.md5(payload).cast("binary"), lambda digest: _read_strictly(payload, digest, tree))

    def add_reason(frame: Column) -> Column:
        why_unresolved = F.when(frame["sound"].isNull(), F.lit(UNRESOLVED))
        return F.struct(frame["value"].alias("value"), F.coalesce(why_bad, why_unresolved).alias("why"))

    return _let(framed, add_reason)


def decode_plain_avro(rows: DataFrame, why: str, schema: str) -> DataFrame:
    """Return `rows` with the binary `value` decoded, and a text `why` it could not be.

    `why` is null where the value could be decoded, or is null.
    """
    column = f"{why}_taken"
    rows = rows.withColumn(column, decode(F.col("value"), schema, schema))
    clause = F.col(column)["why"]
    problem = F.when(F.col("value").isNotNull() & clause.isNotNull(), F.format_string(NOT_A_VALUE, clause))
    return rows.withColumns({why: problem, "value": F.col(column)["value"]}).drop(column)


def _frame_schema(schema: str, *more_fields: Mapping[str, object]) -> str:
    """Return the schema of a record with the field `value`. A record of one field has the same bytes as the field."""
    fields = [{"name": "value", "type": _parse_schema(schema)}, *more_fields]
    return json.dumps({"type": "record", "name": FRAME, "fields": fields})


def _parse_schema(schema: str) -> object:
    try:
        return json.loads(schema)
    except ValueError:
        return schema  # one word


def _read_strictly(payload: Column, digest: Column, tree: Node) -> Column:
    """Read the bytes a second time, with their digest behind them, and return why they are bad: a clause, or null."""
    strict = from_avro(F.concat(payload, digest), make_strict_schema(tree, DIGEST_SIZE), AVRO_READ_OPTIONS)

    def find_reason(record: Column) -> Column:
        end = record[END]
        problem = F.when(end.isNull(), F.lit(UNREADABLE)).when(end != digest, F.lit(LEFT_OVER))
        reason = _reason(tree, record[VALUE], "")
        return problem if reason is None else problem.otherwise(reason)

    return _let(strict, find_reason)


def _let(value: Column, body: Callable[[Column], Column]) -> Column:
    """Return `body` of a value that is computed once, however often the body uses it."""
    return F.get(F.transform(F.array(value), body), F.lit(0))


# ---- rules of a value, below its end: a reason is a text with the field's name, or null where the value is good


def _reason(node: Node, value: Column, at: str) -> Column | None:
    """Return why a part is bad: a text with the field's name, or null. None: nothing of that type can be."""
    if not node.is_read:
        return None
    match node.kind:
        case "record":
            return _reason_of_record(node, value, at)
        case "union":
            return _reason_of_union(node, value, at)
        case "array":
            return _reason_of_items(value, lambda item: _reason(node.item, item, f"{at}[]"))
        case "map":
            return _reason_of_map(node, value, at)
        case _:
            return _reason_of_leaf(node, value, at)


def _first_reason(reasons: list[Column | None]) -> Column | None:
    columns = [reason for reason in reasons if reason is not None]
    return F.coalesce(*columns) if columns else None


def _reason_of_record(node: Node, value: Column, at: str) -> Column | None:
    reasons = []
    for number, (name, part) in enumerate(node.parts):
        path = f"{at}/{name}".lstrip("/")
        reasons.append(_reason(part, value[f"f{number}"], path))
    return _first_reason(reasons)


def _reason_of_union(node: Node, value: Column, at: str) -> Column | None:
    if not node.branches:
        return _reason_if(~value.between(0, len(node.parts) - 1), at, "is not one of its types")
    if len(node.branches) == 1:
        return _reason(node.branches[0], value, at)
    reasons = []
    for number, branch in enumerate(node.branches):
        member = value[f"member{number}"][MEMBER]
        reasons.append(_reason(branch, member, at))
    return _first_reason(reasons)


def _reason_of_items(items: Column, reason_of_item: Callable[[Column], Column | None]) -> Column | None:
    if reason_of_item(F.lit(None)) is None:
        return None

    def require_reason(item: Column) -> Column:
        reason = reason_of_item(item)
        assert reason is not None
        return reason

    return F.get(F.filter(F.transform(items, require_reason), lambda reason: reason.isNotNull()), F.lit(0))


def _reason_of_map(node: Node, entries: Column, at: str) -> Column | None:
    keys = F.transform(entries, lambda entry: entry[KEY])
    why_twice = _reason_if(F.size(F.array_distinct(keys)) < F.size(keys), at, "has a key twice")

    def reason_of_entry(entry: Column) -> Column | None:
        why_key = _reason_if(~is_valid(entry[KEY]), f"{at}[]", "has a key that is not UTF-8")
        return _first_reason([why_key, _reason(node.item, entry[ITEM], f"{at}[]")])

    return _first_reason([why_twice, _reason_of_items(entries, reason_of_entry)])


def _reason_of_leaf(node: Node, value: Column, at: str) -> Column | None:
    limits = _limits(node)
    reasons: list[Column | None] = []
    if limits:
        problem = "is not a date or time in the years 1 to 9999" if node.logical else "is a number that does not fit"
        reasons.append(_reason_if(~value.between(*limits), at, problem))
    if node.exact_bits:
        reasons.append(_reason_if(~_is_exact(node, value), at, "is a whole number of too many digits for its type"))
    match node.kind:
        case "string":
            reasons.append(_reason_if(~is_valid(value), at, "is not UTF-8"))
        case "bytes" if node.logical == "text":
            reasons.append(_reason_if(~is_valid(value.cast("string")), at, "is not UTF-8"))
        case "boolean":
            reasons.append(_reason_if(~value.isin(F.lit(b"\0"), F.lit(b"\1")), at, "is neither true nor false"))
        case "bytes" | "fixed" if node.logical == "decimal" and node.digits <= SHORT_DECIMAL:
            reasons.append(_reason_if(~_fits_eight_bytes(value), at, "is a decimal of too many digits"))
    return _first_reason(reasons)


def _reason_if(is_bad: Column, at: str, problem: str) -> Column:
    return F.when(is_bad, F.lit(f"field '{at}' {problem}" if at else f"it {problem}"))


def _limits(node: Node) -> tuple[int, int] | None:
    """Return the smallest and the largest value of a whole number; None: there are none."""
    if node.kind == "enum":
        return 0, node.size - 1
    if node.logical == "date":
        return FIRST_DAY, LAST_DAY
    if "timestamp" in node.logical:
        units_per_second = PER_SECOND.get(node.logical.rpartition("-")[2])
        if units_per_second:
            return SECONDS[0] * units_per_second, (SECONDS[1] + 1) * units_per_second - 1
    return INT if node.kind == "int" else None


def _is_exact(node: Node, value: Column) -> Column:
    """Return whether a float or double is that whole number."""
    largest = 1 << node.exact_bits
    float_type = "float" if node.exact_bits == avro_schema.EXACT_BITS["float"] else "double"
    # beyond 2^62 a number that was rounded up could not be cast back
    is_same = value.between(-(1 << 62), 1 << 62) & (value.cast(float_type).cast("long") == value)
    return value.between(-largest, largest) | is_same


def _fits_eight_bytes(value: Column) -> Column:
    """Return whether what precedes the last eight bytes only repeats the sign."""
    excess = F.length(value) - 8
    head = F.hex(value.substr(F.lit(1), F.greatest(excess, F.lit(0))))
    sign = F.when(F.hex(F.substring(value, -8, 1)) < F.lit("80"), F.lit("00")).otherwise(F.lit("FF"))
    return (excess <= 0) | (head == F.call_function("repeat", sign, excess))


# ---- the strict schema: by it the same bytes are read without a loss
#
# A usual reader takes each byte but 1 for false, keeps the last of two equal keys of a map, and cuts numbers to 32
# bits.


def make_strict_schema(node: Node, end_size: int) -> str:
    """Return the schema of a record of two fields: the value, and `end_size` bytes that follow it."""
    numbers = count()
    end = {"type": "fixed", "name": "OnceonlyEnd", "size": end_size}
    fields = [{"name": VALUE, "type": _strict_type(node, numbers)}, {"name": END, "type": end}]
    return json.dumps({"type": "record", "name": STRICT_FRAME, "fields": fields})


def _strict_type(node: Node, numbers: Iterator[int]) -> Any:
    """Return the strict type of a node; `numbers` make the names of its records and fixed types unique."""
    match node.kind:
        case "int" | "enum":
            return "long"
        case "boolean":
            return _fixed_type(1, numbers)
        case "fixed":
            return _fixed_type(node.size, numbers)
        case "array":
            return {"type": "array", "items": _strict_type(node.item, numbers)}
        case "map":
            entry = _record([(KEY, "string"), (ITEM, _strict_type(node.item, numbers))], numbers)
            return {"type": "array", "items": entry}
        case "record":
            return _record_of_parts(node, numbers)
        case "union":
            return _strict_union(node, numbers)
        case plain:
            return plain


def _strict_union(node: Node, numbers: Iterator[int]) -> Any:
    if not node.branches:
        return "long"  # of nulls alone: the number of the branch is all that is written
    branches: list[Any] = []
    for _, part in node.parts:
        if part.kind == "null":
            branches.append("null")
        elif len(node.branches) == 1:
            branches.append(_strict_type(part, numbers))
        else:  # Avro allows no two branches of one type, and several may have become "long"
            branches.append(_record([(MEMBER, _strict_type(part, numbers))], numbers))
    return branches


def _fixed_type(size: int, numbers: Iterator[int]) -> Any:
    return {"type": "fixed", "name": f"Fixed{next(numbers)}", "size": size}


def _record_of_parts(node: Node, numbers: Iterator[int]) -> Any:
    fields = []
    for index, (_, part) in enumerate(node.parts):
        fields.append((f"f{index}", _strict_type(part, numbers)))
    return _record(fields, numbers)


def _record(fields: list[tuple[str, Any]], numbers: Iterator[int]) -> Any:
    field_schemas = []
    for name, kind in fields:
        field_schemas.append({"name": name, "type": kind})
    return {"type": "record", "name": f"Record{next(numbers)}", "fields": field_schemas}
