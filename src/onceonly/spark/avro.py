"""Decode Avro exactly: what is decoded was consumed to its last byte and stands for the same value, else it is bad.

Spark's decoder reads a value and ignores what follows. So the bytes are read a second time, by a schema that loses
nothing (`avro_strict`), with their own digest behind them: the digest is found where the value ends exactly if nothing
is left over. All of it is a column of Spark's own: no Python on the workers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from onceonly.registry import avro_schema, avro_strict
from onceonly.registry.avro_schema import Node
from onceonly.spark.text import is_valid

FRAME = "OnceonlyFrame"
DIGEST_SIZE = 32  # of md5 in hexadecimal
DAYS = (-719162, 2932896)  # 0001-01-01 and 9999-12-31, since 1970
SECONDS = (DAYS[0] * 86_400, (DAYS[1] + 1) * 86_400 - 1)
INT = (-(1 << 31), (1 << 31) - 1)
PER_SECOND = {"millis": 1_000, "micros": 1_000_000}
OPTIONS = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}
SHORT_DECIMAL = 18  # digits that Spark keeps in eight bytes, to which it cuts what was written
UNREADABLE = "its bytes end before the record does, or do not match the schema"
LEFT_OVER = "bytes are left over, so it was written by another schema, or begins with the head of a schema registry"
UNRESOLVED = "it cannot become what the reader's schema asks for"


def decoded(payload: Column, writer: str, reader: str) -> Column:
    """A struct of `value`, decoded into the reader's type, and `why` it cannot be believed: a clause, or null.

    Args:
        payload: the bytes of one value; null gives a null value, and some text.
        writer, reader: schemas without references.
    Raises:
        avro_schema.Unusable: a schema cannot be used.
        avro_schema.Unfit: the reader's would take what was written for something else.
    """
    read = avro_schema.parse(reader)
    tree = avro_schema.fitted(avro_schema.parse(writer), read)
    options = {**OPTIONS, "avroSchema": _frame(avro_schema.with_plain_times(reader), SOUND)}
    framed = from_avro(payload, _frame(avro_schema.with_plain_times(writer)), options)
    wrong = _let(F.md5(payload).cast("binary"), lambda digest: _why(payload, digest, tree))
    return _let(
        framed,
        lambda taken: F.struct(
            taken["value"].alias("value"),
            F.coalesce(wrong, F.when(taken["sound"].isNull(), F.lit(UNRESOLVED))).alias("why"),
        ),
    )


SOUND: Mapping[str, object] = {"name": "sound", "type": "boolean", "default": True}  # there only if it could be read


def _frame(schema: str, *more: Mapping[str, object]) -> str:
    """A record of one field has the same bytes as the field."""
    fields = [{"name": "value", "type": _json(schema)}, *more]
    return json.dumps({"type": "record", "name": FRAME, "fields": fields})


def _json(schema: str) -> object:
    try:
        return json.loads(schema)
    except ValueError:
        return schema  # one word


def _why(payload: Column, digest: Column, tree: Node) -> Column:
    strict = from_avro(F.concat(payload, digest), avro_strict.schema_of(tree, DIGEST_SIZE), OPTIONS)

    def judge(found: Column) -> Column:
        end = found[avro_strict.END]
        problem = F.when(end.isNull(), F.lit(UNREADABLE)).when(end != digest, F.lit(LEFT_OVER))
        reason = _reason(tree, found[avro_strict.VALUE], "")
        return problem if reason is None else problem.otherwise(reason)

    return _let(strict, judge)


def _let(value: Column, body: Callable[[Column], Column]) -> Column:
    """`body` of a value that is computed once, however often the body uses it."""
    return F.get(F.transform(F.array(value), body), F.lit(0))


# ---- what a value must be, below its end


def _reason(node: Node, found: Column, at: str) -> Column | None:
    """Why a part is bad: a text with the field's name, or null. None: nothing of that type can be."""
    if not node.is_read:
        return None
    match node.kind:
        case "record":
            parts = enumerate(node.parts)
            return _first([_reason(part, found[f"f{i}"], _below(at, name)) for i, (name, part) in parts])
        case "union":
            return _reason_of_union(node, found, at)
        case "array":
            return _reason_of_items(found, lambda item: _reason(node.item, item, f"{at}[]"))
        case "map":
            return _reason_of_map(node, found, at)
        case _:
            return _reason_of_leaf(node, found, at)


def _below(at: str, name: str) -> str:
    return f"{at}/{name}".lstrip("/")


def _first(reasons: list[Column | None]) -> Column | None:
    some = [reason for reason in reasons if reason is not None]
    return F.coalesce(*some) if some else None


def _reason_of_union(node: Node, found: Column, at: str) -> Column | None:
    if not node.branches:
        return _told(at, "is not one of its types", ~found.between(0, len(node.parts) - 1))
    if len(node.branches) == 1:
        return _reason(node.branches[0], found, at)
    members = [found[f"member{i}"][avro_strict.MEMBER] for i in range(len(node.branches))]
    return _first([_reason(part, member, at) for part, member in zip(node.branches, members, strict=True)])


def _reason_of_items(found: Column, of_item: Callable[[Column], Column | None]) -> Column | None:
    if of_item(F.lit(None)) is None:
        return None

    def body(item: Column) -> Column:
        reason = of_item(item)
        assert reason is not None
        return reason

    return F.get(F.filter(F.transform(found, body), lambda reason: reason.isNotNull()), F.lit(0))


def _reason_of_map(node: Node, found: Column, at: str) -> Column | None:
    keys = F.transform(found, lambda entry: entry[avro_strict.KEY])
    twice = _told(at, "has a key twice", F.size(F.array_distinct(keys)) < F.size(keys))

    def of_entry(entry: Column) -> Column | None:
        key = _told(f"{at}[]", "has a key that is not UTF-8", ~is_valid(entry[avro_strict.KEY]))
        return _first([key, _reason(node.item, entry[avro_strict.ITEM], f"{at}[]")])

    return _first([twice, _reason_of_items(found, of_entry)])


def _reason_of_leaf(node: Node, found: Column, at: str) -> Column | None:
    limits = _limits(node)
    reasons: list[Column | None] = []
    if limits:
        what = "is not a date or time in the years 1 to 9999" if node.logical else "is a number that does not fit"
        reasons.append(_told(at, what, ~found.between(*limits)))
    if node.exact_bits:
        reasons.append(_told(at, "is a whole number of too many digits for its type", ~_is_exact(node, found)))
    match node.kind:
        case "string":
            reasons.append(_told(at, "is not UTF-8", ~is_valid(found)))
        case "bytes" if node.logical == "text":
            reasons.append(_told(at, "is not UTF-8", ~is_valid(found.cast("string"))))
        case "boolean":
            reasons.append(_told(at, "is neither true nor false", ~found.isin(F.lit(b"\0"), F.lit(b"\1"))))
        case "bytes" | "fixed" if node.logical == "decimal" and node.digits <= SHORT_DECIMAL:
            reasons.append(_told(at, "is a decimal of too many digits", ~_fits_eight_bytes(found)))
    return _first(reasons)


def _told(at: str, what: str, is_bad: Column) -> Column:
    return F.when(is_bad, F.lit(f"field '{at}' {what}" if at else f"it {what}"))


def _limits(node: Node) -> tuple[int, int] | None:
    """Of a whole number."""
    if node.kind == "enum":
        return 0, node.size - 1
    if node.logical == "date":
        return DAYS
    if unit := PER_SECOND.get(node.logical.rpartition("-")[2] if "timestamp" in node.logical else ""):
        return SECONDS[0] * unit, (SECONDS[1] + 1) * unit - 1
    return INT if node.kind == "int" else None


def _is_exact(node: Node, found: Column) -> Column:
    """Whether a float or double is that whole number."""
    whole = 1 << node.exact_bits
    wide = "float" if node.exact_bits == avro_schema.EXACT_BITS["float"] else "double"
    # beyond 2^62 a number that was rounded up could not be cast back
    is_same = found.between(-(1 << 62), 1 << 62) & (found.cast(wide).cast("long") == found)
    return found.between(-whole, whole) | is_same


def _fits_eight_bytes(found: Column) -> Column:
    """Whether what precedes the last eight bytes only repeats the sign."""
    spare = F.length(found) - 8
    head = F.hex(found.substr(F.lit(1), F.greatest(spare, F.lit(0))))
    sign = F.when(F.hex(F.substring(found, -8, 1)) < F.lit("80"), F.lit("00")).otherwise(F.lit("FF"))
    return (spare <= 0) | (head == F.call_function("repeat", sign, spare))
