"""Protobuf messages as rows: which message a value names, its types, and what cannot be read."""

from __future__ import annotations

from typing import Any

import protos
import pytest
from google.protobuf.descriptor_pb2 import EnumDescriptorProto, FileDescriptorProto
from protos import field, file, message

from onceonly.kafka.registry import protobuf
from onceonly.kafka.registry.client import Schema

LINE = message("Line", field(1, "sku", "string"), field(2, "n", "int64"))
ORDER = message("Order", field(1, "id", "int32"), field(3, "lines", ".shop.Order.Line", repeated=True), nested=[LINE])
OTHER = message("Other", field(1, "text", "string"))


def compiled(made: FileDescriptorProto, *references: tuple[str, FileDescriptorProto]) -> bytes:
    others = tuple((name, Schema(2, "PROTOBUF", protos.text(each))) for name, each in references)
    return protobuf.files(Schema(1, "PROTOBUF", protos.text(made), others))


def framed(indexes: bytes, made: Any, id: int = 1) -> bytes:
    return b"\0" + id.to_bytes(4, "big") + indexes + made.SerializeToString()


SHOP = file(OTHER, ORDER)


def test_a_message_is_named_by_its_indexes() -> None:
    files = compiled(SHOP)
    for indexes, name in {(0,): "shop.Other", (1,): "shop.Order", (1, 0): "shop.Order.Line"}.items():
        assert protobuf.message_at(files, indexes) == name
        assert protobuf.indexes_of(files, name) == indexes
    assert protobuf.indexes_of(files, "shop.Nothing") is None
    with pytest.raises(protobuf.Unusable, match=r"no message \[1, 7\]"):
        protobuf.message_at(files, (1, 7))


@pytest.mark.parametrize(
    ("written", "indexes"),
    [(b"\0", (0,)), (b"\2\2", (1,)), (b"\4\2\0", (1, 0)), (b"\2\xc8\1", (100,)), (b"\2\0", (0,))],
)
def test_indexes_as_clients_write_them(written: bytes, indexes: tuple[int, ...]) -> None:
    assert protobuf.parsed_indexes(b"\0\0\0\0\1" + written + b"rest", 5) == (indexes, 5 + len(written))


def test_nested_and_repeated_values() -> None:
    made = protos.of("shop.Order", SHOP)(id=7, lines=[{"sku": "a", "n": 2**40}, {}])
    read = protobuf.reader(compiled(SHOP), "shop.Order", {1: (1,)})
    lines = [{"sku": "a", "n": 2**40}, {"sku": "", "n": 0}]
    assert read(framed(b"\2\2", made)) == {"value": {"id": 7, "lines": lines}, "why": None}


def test_a_missing_value_is_null_where_it_has_presence_and_zero_elsewhere() -> None:
    fields = [field(1, "a", "int32"), field(2, "b", "int32", optional=True), field(3, "c", ".shop.Other")]
    shop = file(message("A", *fields), OTHER)
    read = protobuf.reader(compiled(shop), "shop.A", {1: (0,)})
    assert read(b"\0\0\0\0\1\0") == {"value": {"a": 0, "b": None, "c": None}, "why": None}


def test_times_maps_and_enums() -> None:
    entry = message("TagsEntry", field(1, "key", "string"), field(2, "value", "int32"))
    entry.options.map_entry = True
    fields = [
        field(1, "at", ".google.protobuf.Timestamp"),
        field(2, "tags", ".shop.A.TagsEntry", repeated=True),
        field(3, "kind", "enum .shop.Kind"),
    ]
    shop = file(message("A", *fields, nested=[entry]), imports=("google/protobuf/timestamp.proto",))
    kind = EnumDescriptorProto(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="BIG", number=1)
    shop.enum_type.append(kind)
    made = protos.of("shop.A", shop)(tags={"b": 2, "a": 1}, kind=1)
    made.at.FromJsonString("2013-01-01T00:00:01.000002Z")
    files = compiled(shop)
    read = protobuf.reader(files, "shop.A", {1: (0,)})
    found = read(framed(b"\0", made))
    assert found["value"] == {"at": 1356998401000002, "tags": [("a", 1), ("b", 2)], "kind": "BIG"}
    kinds = {each["name"]: each["type"] for each in protobuf.spark_type(files, "shop.A")["fields"]}
    assert (kinds["at"], kinds["tags"]["valueType"], kinds["kind"]) == ("timestamp", "integer", "string")


def test_messages_of_other_files() -> None:
    money = file(message("Money", field(1, "cents", "int64")), name="money.proto")
    order = file(message("Paid", field(1, "net", ".shop.Money")), imports=("money.proto",))
    files = compiled(order, ("money.proto", money))
    made = protos.of("shop.Paid", money, order)(net={"cents": 5})
    read = protobuf.reader(files, "shop.Paid", {1: (0,)})
    assert read(framed(b"\0", made)) == {"value": {"net": {"cents": 5}}, "why": None}


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\0\0\0\0\1",  # ends after the id
        b"\1\0\0\0\1\2\2",  # another magic byte
        b"\0\0\0\0\2\2\2",  # another schema
        b"\0\0\0\0\1\0",  # the first message, not the second
        b"\0\0\0\0\1\2\2\x0a\xff",  # ends within a field
        b"\0\0\0\0\3\1",  # fewer indexes than none, of a schema without that message
    ],
)
def test_what_is_not_that_message_is_not_read(value: bytes | None) -> None:
    found = protobuf.reader(compiled(SHOP), "shop.Order", {1: (1,), 3: ()})(value)
    assert found is None or (found["value"] is None and found["why"])


def test_a_field_that_was_written_as_another_type_is_noticed() -> None:
    """A parser would put it among the unknown fields, and read a zero."""
    old, new = (file(message("A", field(1, "a", kind))) for kind in ("string", "int32"))
    assert "field 1 ('a') of 'shop.A'" in str(protobuf.find_misfit(compiled(old), compiled(new), "shop.A"))
    wide = file(message("A", field(1, "a", "int64"), field(2, "b", "string")))
    assert protobuf.find_misfit(compiled(new), compiled(wide), "shop.A") is None
    assert protobuf.find_misfit(compiled(wide), compiled(new), "shop.A")


def test_it_is_noticed_in_every_place_where_a_message_is_used() -> None:
    """The first place fits; in the second one, the writer's fields are of another message."""
    money, note = message("Money", field(1, "cents", "int64")), message("Note", field(1, "text", "string"))
    fields = [field(1, "net", ".shop.Money"), field(2, "more", ".shop.Money")]
    read = file(message("A", *fields), money)
    written = file(message("A", fields[0], field(2, "more", ".shop.Note")), money, note)
    assert "'cents'" in str(protobuf.find_misfit(compiled(written), compiled(read), "shop.A"))


def test_a_message_within_itself_has_no_type() -> None:
    shop = file(message("A", field(1, "a", ".shop.A")))
    with pytest.raises(protobuf.Unusable, match="contains itself"):
        protobuf.spark_type(compiled(shop), "shop.A")


def test_text_that_is_not_compiled_is_refused() -> None:
    with pytest.raises(protobuf.Unusable, match="does not know format=serialized"):
        protobuf.files(Schema(1, "PROTOBUF", 'syntax = "proto3"; message A {}'))
