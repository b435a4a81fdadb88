"""Protobuf messages are read exactly: what a parser would cut, merge or pass over is refused."""

from __future__ import annotations

import random
from typing import Any

import protos
import pytest
from google.protobuf.descriptor_pb2 import EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto
from protos import field, file, message

from onceonly.kafka.registry import protobuf
from onceonly.kafka.registry.client import Schema

VALUES: Any = {"bool": True, "string": "text", "bytes": b"bytes", "double": 1.5, "float": 0.5}
HEAD = b"\0\0\0\0\1\0"
SAMPLE = 2_000
KINDS = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "fixed32": 7, "bool": 8, "string": 9,
    "bytes": 12, "uint32": 13, "sfixed32": 15, "sfixed64": 16, "sint32": 17, "sint64": 18,
}  # fmt: skip


def everything(syntax: str = "proto3") -> FileDescriptorProto:
    """A file whose first message has a field of each type, a map, an enum, a time, a wrapper and a message."""
    tags = message("TagsEntry", field(1, "key", "string"), field(2, "value", "int32"))
    tags.options.map_entry = True
    plain = [FieldDescriptorProto(name=f"a_{name}", number=n, type=n, label=1) for name, n in KINDS.items()]
    lists = [FieldDescriptorProto(name=f"l_{name}", number=30 + n, type=n, label=3) for name, n in KINDS.items()]
    more = [
        field(60, "at", ".google.protobuf.Timestamp"),
        field(61, "wrapped", ".google.protobuf.UInt64Value"),
        field(62, "tags", ".shop.All.TagsEntry", repeated=True),
        field(63, "kind", "enum .shop.Kind"),
        field(64, "line", ".shop.Line"),
        field(65, "lines", ".shop.Line", repeated=True),
    ]
    line = message("Line", field(1, "sku", "string"), field(2, "n", "int64"), field(3, "yes", "bool"))
    made = file(
        message("All", *plain, *lists, *more, nested=[tags]),
        line,
        imports=("google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"),
    )
    made.enum_type.append(EnumDescriptorProto(name="Kind", value=[{"name": "NONE"}, {"name": "BIG", "number": 1}]))
    made.syntax = syntax
    return made


def reader(made: FileDescriptorProto, name: str = "shop.All") -> Any:
    return protobuf.reader(protobuf.files(Schema(1, "PROTOBUF", protos.text(made))), name, {1: (0,)})


def full(made: FileDescriptorProto) -> Any:
    built = protos.of("shop.All", made)()
    for name, kind in KINDS.items():
        value: Any = {"bool": True, "string": "text", "bytes": b"bytes", "double": 1.5, "float": 0.5}.get(
            name, kind * 7
        )
        setattr(built, f"a_{name}", value)
        getattr(built, f"l_{name}").extend([value, value])
    built.at.FromJsonString("2013-01-01T00:00:01.000002Z")
    built.wrapped.value = 2**64 - 1
    built.tags["a"], built.tags["b"] = 1, 2
    built.kind = 1
    built.line.sku, built.line.n = "a", 3
    built.lines.add(sku="b")
    built.lines.add(yes=True)
    return built


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
def test_every_type_is_read(syntax: str) -> None:
    made = everything(syntax)
    found = reader(made)(HEAD + full(made).SerializeToString())
    assert found["why"] is None
    assert found["value"]["l_sint64"] == [126, 126]


BAD = {
    "a number of 33 bits in an int32": (b"\x28\x80\x80\x80\x80\x10", "does not fit"),
    "a number of 33 bits in an enum": (b"\xf8\x03\x80\x80\x80\x80\x10", "does not fit"),
    "two in a bool": (b"\x40\x02", "does not fit"),
    "two in a bool of a message": (b"\x82\x04\x02\x18\x02", "does not fit"),
    "two in a list of bools": (b"\xb2\x02\x02\x01\x02", "does not fit"),
    "a text in an int32": (b"\x2a\x01a", "another type"),
    "a number in a text": (b"\x48\x01", "another type"),
    "a text in a message": (b"\x82\x04\x02\x08\x01", "another type"),
    "a field twice": (b"\x28\x01\x28\x02", "more than once"),
    "a message twice": (b"\x82\x04\x03\x0a\x01a" * 2, "more than once"),
    "a key twice": (b"\xf2\x03\x05\x0a\x01a\x10\x01" + b"\xf2\x03\x05\x0a\x01a\x10\x02", "a key twice"),
    "no key twice": (b"\xf2\x03\x02\x10\x01" + b"\xf2\x03\x04\x0a\x00\x10\x02", "a key twice"),
    "nanoseconds": (b"\xe2\x03\x02\x10\x01", "finer than microseconds"),
    "a second of nanoseconds": (b"\xe2\x03\x06\x10\x80\x94\xeb\xdc\x03", "years 1 to 9999"),
    "the year 10000": (b"\xe2\x03\x07\x08\x80\x83\xd1\xff\xaf\x07", "years 1 to 9999"),
    "an end within a field": (b"\x4a\x05abc", "no such message"),
    "a text that is not UTF-8": (b"\x4a\x01\xff", "no such message"),
    "field 0": (b"\x00\x01", "no such message"),
}


@pytest.mark.parametrize("name", BAD)
def test_altered_bytes_are_refused(name: str) -> None:
    data, why = BAD[name]
    found = reader(everything())(HEAD + data)
    assert found["value"] is None and why in found["why"], found


def test_proto2_is_no_less_strict() -> None:
    read = reader(everything("proto2"))
    assert "UTF-8" in read(HEAD + b"\x4a\x01\xff")["why"]
    assert "its enum does not have" in read(HEAD + b"\xf8\x03\x07")["why"]


GOOD = {
    "another order": (b"\x4a\x01a\x28\x01", {"a_int32": 1, "a_string": "a"}),
    "zeros that are written": (b"\x28\x00\x4a\x00", {"a_int32": 0, "a_string": ""}),
    "a longer number": (b"\x28\x81\x00", {"a_int32": 1}),
    "a negative int32 in ten bytes": (b"\x28" + b"\xff" * 9 + b"\x01", {"a_int32": -1}),
    "a list that is not packed": (b"\x98\x02\x01\x98\x02\x02", {"l_int32": [1, 2]}),
    "a list in two parts": (b"\x9a\x02\x01\x01\x9a\x02\x01\x02", {"l_int32": [1, 2]}),
    "a field that the schema does not have": (b"\x28\x01\xc2\x3e\x01a", {"a_int32": 1}),
    "a group that the schema does not have": (b"\xc3\x3e\x08\x01\xc4\x3e\x28\x01", {"a_int32": 1}),
    "an enum's number without a name": (b"\xf8\x03\x07", {"kind": "7"}),
}


@pytest.mark.parametrize("name", GOOD)
def test_other_ways_to_write_the_same_are_read(name: str) -> None:
    data, wanted = GOOD[name]
    found = reader(everything())(HEAD + data)
    assert found["why"] is None
    assert {field: found["value"][field] for field in wanted} == wanted


def mutated(data: bytes, random_: random.Random) -> bytes:
    """With bytes changed, removed, repeated, inserted or cut off."""
    made = bytearray(data)
    for _ in range(random_.choice((1, 1, 2, 5))):
        at = random_.randrange(len(made) + 1)
        match random_.randrange(5):
            case 0 if at < len(made):
                made[at] ^= 1 << random_.randrange(8)
            case 1 if at < len(made):
                made[at] = random_.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                made[at:at] = random_.randbytes(random_.randrange(1, 6))
            case 3:
                del made[at : at + random_.randrange(1, 6)]
            case _:
                made[at:at] = made[: random_.randrange(len(made) + 1)][:40]
    return bytes(made)


def fuzz(number: int, seed: int = 0) -> tuple[int, int]:
    """How many of the mutated messages were good, and how many bad. Good ones are the same when written again."""
    random_, made = random.Random(seed), everything()
    read, class_, data = reader(made), protos.of("shop.All", made), full(made).SerializeToString()
    good = 0
    for _ in range(number):
        bytes_ = mutated(data, random_)
        found = read(HEAD + bytes_)
        if found["why"] is None:
            again = class_.FromString(bytes_)
            again.DiscardUnknownFields()
            assert repr(read(HEAD + again.SerializeToString())["value"]) == repr(found["value"])  # NaN among them
            good += 1
        else:
            assert found["value"] is None
    return good, number - good


def test_mutated_messages_raise_nothing() -> None:
    good, bad = fuzz(SAMPLE)
    assert good > SAMPLE / 50 and bad > SAMPLE / 2
