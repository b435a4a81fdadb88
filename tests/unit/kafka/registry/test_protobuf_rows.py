"""Rows as Protobuf messages, which their reader reads back."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import protos
import pytest
from google.protobuf.descriptor_pb2 import EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet
from protos import field, file, message

from onceonly.kafka.registry import protobuf, protobuf_writer
from onceonly.kafka.registry.protobuf_writer import find_misfit
from onceonly.unix_time import MICROSECOND, UNIX_EPOCH

LINE = message("Line", field(1, "sku", "string"), field(2, "n", "int64", optional=True))
STATE = EnumDescriptorProto(name="State", value=[{"name": "NEW", "number": 0}, {"name": "PAID", "number": 2}])


def order() -> Any:
    entry = message("TagsEntry", field(1, "key", "string"), field(2, "value", "int64"))
    entry.options.map_entry = True
    made = message(
        "Order",
        field(1, "id", "int32"),
        field(2, "lines", ".shop.Line", repeated=True),
        field(3, "tags", ".shop.Order.TagsEntry", repeated=True),
        field(4, "at", ".google.protobuf.Timestamp"),
        field(5, "discount", ".google.protobuf.Int64Value"),
        field(6, "state", "enum .shop.State"),
        field(7, "card", "string"),
        field(8, "cash", "int32"),
        FieldDescriptorProto(name="big", number=9, type=FieldDescriptorProto.TYPE_UINT64, label=1),
        nested=[entry],
    )
    made.oneof_decl.add(name="paid")
    made.field[6].oneof_index = made.field[7].oneof_index = 0
    found = file(made, LINE, imports=("google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"))
    found.enum_type.append(STATE)
    return found


def files(made: Any = None) -> bytes:
    return protobuf.parse_descriptor_set(FileDescriptorSet(file=[made or order()]).SerializeToString())[1]


FULL = {
    "id": 7,
    "lines": [{"sku": "a", "n": 2**40}, {"sku": "", "n": None}],
    "tags": [("x", 1), ("y", 0)],
    "at": datetime(2013, 1, 1, 0, 0, 0, 123456, UTC),
    "discount": 0,
    "state": "PAID",
    "card": None,
    "cash": 0,
    "big": Decimal(2**64 - 1),
}
EMPTY = {"id": 0, "lines": [], "tags": [], "state": "NEW", "big": Decimal(0)}


def written(row: dict[str, Any], made: Any = None) -> bytes:
    return protobuf_writer.writer(files(made), "shop.Order")(row)


@pytest.mark.parametrize("row", [FULL, {**FULL, "at": datetime(1969, 12, 31, 23, 59, 59, 1, UTC)}, EMPTY])
def test_what_is_written_is_read_back(row: dict[str, Any]) -> None:
    found = protobuf.reader(files(), "shop.Order", {1: (0,)})(b"\0\0\0\0\1\0" + written(row))
    at = row.get("at")
    micros = at and (at - UNIX_EPOCH) // MICROSECOND
    nothing = dict.fromkeys(("card", "cash", "discount"))
    assert found == {"value": {**nothing, **row, "big": int(row["big"]), "at": micros}, "why": None}


def test_the_types_are_those_of_the_reader() -> None:
    types = {each["name"]: each["type"] for each in protobuf.spark_type(files(), "shop.Order")["fields"]}
    assert (types["discount"], types["at"], types["state"]) == ("long", "timestamp", "string")
    assert types["tags"]["type"] == "map"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"id": None}, "field 'id' is null, and has no presence"),
        ({"card": "4711", "cash": 5}, "oneof 'paid' has several values"),
        ({"state": "secret"}, r"field 'state' does not take its value \(ValueError\)"),
        ({"id": 2**40}, "field 'id' does not take its value"),
        ({"lines": [None]}, "field 'lines' does not take its value"),
        ({"tags": [("x", None)]}, "field 'tags' does not take its value"),
    ],
)
def test_what_a_message_cannot_hold_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(protobuf_writer.Unwritable, match=why) as refused:
        written({**FULL, **change})
    assert "secret" not in str(refused.value)


def test_types_that_do_not_fit() -> None:
    want = protobuf.spark_type(files(), "shop.Order")
    of = lambda name, kind: {"type": "struct", "fields": [{"name": name, "type": kind}]}  # noqa: E731
    assert find_misfit(want, want) is None
    assert find_misfit(of("id", "short"), want) is None
    assert find_misfit(of("id", "long"), want) == "value.id is long, and the message has integer"
    assert find_misfit(of("more", "long"), want) == "value.more is not a field of the message"
    assert find_misfit(of("lines", "string"), want) == "value.lines is string, and the message has array"
    nested = {"type": "array", "elementType": of("sku", "long"), "containsNull": True}
    assert find_misfit(of("lines", nested), want) == ("value.lines.elementType.sku is long, and the message has string")


@pytest.mark.parametrize("indexes", [(0,), (1,), (1, 0), (64, 8191), (300,)])
def test_indexes_are_read_back(indexes: tuple[int, ...]) -> None:
    text = protobuf.indexes_text(indexes)
    assert protobuf.parsed_indexes(text + b"rest", 0) == (indexes, len(text))


def test_the_text_for_a_registry_is_that_of_confluents_serializer() -> None:
    made = order()
    assert protobuf.parse_descriptor_set(FileDescriptorSet(file=[made]).SerializeToString())[0] == protos.text(made)


def test_proto2_with_required_fields_and_defaults() -> None:
    made = file(message("Order", field(1, "id", "int32"), field(2, "note", "string")))
    made.syntax = "proto2"
    made.message_type[0].field[0].label = FieldDescriptorProto.LABEL_REQUIRED
    made.message_type[0].field[1].default_value = "none"
    read = protobuf.reader(files(made), "shop.Order", {1: (0,)})
    assert read(b"\0\0\0\0\1\0" + written({"id": 1}, made)) == {"value": {"id": 1, "note": None}, "why": None}
    with pytest.raises(protobuf_writer.Unwritable, match="a required field is missing"):
        written({"note": "n"}, made)
    assert read(b"\0\0\0\0\1\0\x12\1n") == {"value": None, "why": "a required field is missing"}
