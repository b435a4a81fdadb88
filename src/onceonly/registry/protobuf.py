"""Protobuf schemas of a registry: their messages as Spark's types, and the values of messages as rows.

The registry sends them compiled (`format=serialized`), so nothing here parses .proto text. A value names its message by
indexes after the schema's id: (0,) is the first of the file, (1, 0) the first within the second.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib import import_module
from typing import Any

from onceonly.registry import protobuf_wire
from onceonly.registry.client import Schema
from onceonly.registry.protobuf_wire import Altered
from onceonly.registry.wire import HEAD, id_of

MAIN = "onceonly_main.proto"
ROOTS = ("", "confluent_kafka.schema_registry.")  # packages with files that many schemas import
TIMESTAMP = "google.protobuf.Timestamp"
WRAPPERS = {  # messages of one field, which stand for a value that may be null
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
COMMON = ("google/protobuf/", "google/type/", "confluent/")  # files that every registry knows
SECONDS = (-62_135_596_800, 253_402_300_799)  # of Timestamps: 0001-01-01 to 9999-12-31, since 1970
EPOCH, MICROSECOND = datetime.fromtimestamp(0, UTC), timedelta(microseconds=1)
TYPES = {  # of descriptor.proto; enums and messages are not here
    1: "double", 2: "float", 3: "long", 4: "decimal(20,0)", 5: "integer", 6: "decimal(20,0)", 7: "long", 8: "boolean",
    9: "string", 12: "binary", 13: "long", 15: "integer", 16: "long", 17: "integer", 18: "long",
}  # fmt: skip
STRING, MESSAGE, ENUM = 9, 11, 14
WIDER = {(5, 3), (13, 4), (13, 3), (17, 18), (14, 5), (14, 3)}  # (written, read), beside the same type


class Unusable(Exception):
    """Why a schema cannot be used."""


# ---- schemas


def files(schema: Schema) -> bytes:
    """The schema with all that it imports, as a serialized FileDescriptorSet."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    found = {name: file for name, file in _files(schema, MAIN)}
    return bytes(FileDescriptorSet(file=found.values()).SerializeToString())


def of_set(data: bytes) -> tuple[str, bytes]:
    """The last file of a FileDescriptorSet, as text for a registry; and all of them, as from `files`.

    Raises:
        Unusable: it is no such set, or the file imports others that would have to be registered before it.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        found = FileDescriptorSet.FromString(data)
    except DecodeError as error:
        raise Unusable(f"it is not a FileDescriptorSet: {error}") from None
    if not found.file or not found.file[-1].message_type:
        raise Unusable("it describes no message")
    main = found.file[-1]
    if others := [name for name in main.dependency if not name.startswith(COMMON)]:
        raise Unusable(f"it imports {others[0]}; write the types of both into one file")
    text = base64.b64encode(main.SerializeToString()).decode()
    return text, files(Schema(0, "PROTOBUF", text))


def indexes_text(indexes: tuple[int, ...]) -> bytes:
    """As they stand before a message; a single zero for the first one. See `parsed_indexes`."""
    return b"\0" if indexes == (0,) else b"".join(_zigzag(number) for number in (len(indexes), *indexes))


def _zigzag(number: int) -> bytes:
    """Of a number that is not negative."""
    left, found = number << 1, bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


def message_at(files: bytes, indexes: tuple[int, ...]) -> str:
    """The full name of a message of the file."""
    try:
        found = _main(files).message_type[indexes[0]]
        name = f"{_main(files).package}.{found.name}".lstrip(".")
        for index in indexes[1:]:
            found = found.nested_type[index]
            name = f"{name}.{found.name}"
    except IndexError:
        raise Unusable(f"it has no message {list(indexes)}") from None
    return name


def indexes_of(files: bytes, name: str) -> tuple[int, ...] | None:
    """The inverse of `message_at`."""
    main = _main(files)
    return next((at for at, each in _messages(main.message_type, main.package, ()) if each == name), None)


def spark_type(files: bytes, name: str) -> dict[str, Any]:
    """The message as Spark's struct, in the JSON form of types.

    Raises:
        Unusable: there is no such message, or it contains itself.
    """
    return _struct(descriptor(files, name), ())


def misfit(written: bytes, read: bytes, name: str) -> str | None:
    """Why values of the one cannot be read as the other; None if they can. A parser alone would leave out fields."""
    return _misfit(descriptor(written, name), descriptor(read, name), set())


def _files(schema: Schema, name: str) -> Iterator[tuple[str, Any]]:
    """Those first that others import."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    for imported, other in schema.references:
        yield from _files(other, imported)
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(schema.text, validate=True))
    except Exception as error:
        raise Unusable(f"schema {schema.id} is not compiled: the registry does not know format=serialized") from error
    referred = {imported for imported, _ in schema.references}
    for imported in set(file.dependency) - referred:
        yield from _common(imported)
    file.name = name
    yield name, file


def _common(path: str) -> Iterator[tuple[str, Any]]:
    """A file that comes with protobuf, or with Confluent's client, and what that imports."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    module = path.removesuffix(".proto").replace("/", ".") + "_pb2"
    for root in ROOTS:
        try:
            found = import_module(root + module).DESCRIPTOR
        except ImportError:
            continue
        for other in found.dependencies:
            yield from _common(other.name)
        file = FileDescriptorProto()
        found.CopyToProto(file)
        file.name = path
        yield path, file
        return
    raise Unusable(f"it imports {path}, which is not one of its references")


@lru_cache(64)
def _main(files: bytes) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    return next(file for file in FileDescriptorSet.FromString(files).file if file.name == MAIN)


def _messages(found: Any, package: str, at: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], str]]:
    for index, each in enumerate(found):
        name = f"{package}.{each.name}".lstrip(".")
        yield (*at, index), name
        yield from _messages(each.nested_type, name, (*at, index))


@lru_cache(64)
def descriptor(files: bytes, name: str) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    try:
        for file in FileDescriptorSet.FromString(files).file:
            pool.AddSerializedFile(file.SerializeToString())
        return pool.FindMessageTypeByName(name)
    except (KeyError, TypeError) as error:
        raise Unusable(f"message '{name}': {error}") from error


# ---- types


def _struct(message: Any, within: tuple[str, ...]) -> dict[str, Any]:
    if message.full_name in within:
        raise Unusable(f"message '{message.full_name}' contains itself")
    inside = (*within, message.full_name)
    fields = [
        {"name": field.name, "type": _type(field, inside), "nullable": True, "metadata": {}} for field in message.fields
    ]
    return {"type": "struct", "fields": fields}


def _type(field: Any, within: tuple[str, ...]) -> Any:
    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        kinds = {"keyType": _single(key, within), "valueType": _single(value, within)}
        return {"type": "map", **kinds, "valueContainsNull": True}
    single = _single(field, within)
    return {"type": "array", "elementType": single, "containsNull": True} if field.is_repeated else single


def _single(field: Any, within: tuple[str, ...]) -> Any:
    if field.type == ENUM:
        return "string"
    if field.message_type is None:
        return TYPES[field.type]
    name = field.message_type.full_name
    if name in WRAPPERS:
        return TYPES[field.message_type.fields_by_name["value"].type]
    return "timestamp" if name == TIMESTAMP else _struct(field.message_type, within)


def is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _misfit(written: Any, read: Any, seen: set[tuple[str, str]]) -> str | None:
    both = written.full_name, read.full_name
    if both in seen:
        return None
    seen.add(both)
    for field in read.fields:
        other = written.fields_by_number.get(field.number)
        if other is None:
            continue
        same = field.type == other.type or (other.type, field.type) in WIDER
        if not same or field.is_repeated != other.is_repeated:
            return f"field {field.number} ('{field.name}') of '{read.full_name}' is written as another type"
        if field.type == MESSAGE and (why := _misfit(other.message_type, field.message_type, seen)):
            return why
    return None


# ---- values


Convert = Callable[[Any], Any]


def reader(files: bytes, name: str, allowed: Mapping[int, tuple[int, ...]]) -> Convert:
    """A function of a whole value, head included: {'value': row, 'why': None}, or why it cannot be read, as a clause.

    None for what has no head, or another schema's.

    Args:
        allowed: by schema id: the indexes of the message that is read; other messages of the file are not.
    """
    made, convert = message_class(files, name), _converter(descriptor(files, name))

    def read(value: bytes | None) -> dict[str, Any] | None:
        id = None if value is None else id_of(value)
        if value is None or id is None or id not in allowed:
            return None
        try:
            indexes, start = parsed_indexes(value, HEAD)
            if allowed[id] != indexes:
                return _bad(f"it is another message of its schema, and not {name}")
            return {"value": convert(_exact(made, value[start:])), "why": None}
        except Altered as error:
            return _bad(str(error))
        except Exception:  # a parser may raise anything for malformed bytes
            return _bad("its bytes are no such message")

    return read


def _bad(why: str) -> dict[str, Any]:
    return {"value": None, "why": why}


def _exact(made: Any, data: bytes) -> Any:
    """The message that the bytes are. Raises Altered, or what a parser raises.

    A message without unknown fields that has the same bytes when it is written again has lost nothing. Others may be
    written in another order or by another library: their fields are looked at one by one.
    """
    message = made.FromString(data)
    if not message.IsInitialized():
        raise Altered("a required field is missing")
    message.DiscardUnknownFields()
    if message.SerializeToString(deterministic=True) != data:
        protobuf_wire.check(data, made.DESCRIPTOR)
    return message


def after_id(files: bytes, name: str) -> Convert:
    """A function of what follows the id in a value that was written as this message: its row, as from `reader`."""
    made, convert = message_class(files, name), _converter(descriptor(files, name))
    return lambda value: convert(made.FromString(value[parsed_indexes(value, 0)[1] :]))


def parsed_indexes(value: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """The message's indexes, and where the message begins. A single zero stands for the first one."""
    count, at = _varint(value, at)
    if count == 0:
        return (0,), at
    if count < 0:
        raise ValueError(count)
    found = []
    for _ in range(count):
        index, at = _varint(value, at)
        found.append(index)
    return tuple(found), at


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """A zigzag number, and what follows it."""
    number, at = protobuf_wire.varint(memoryview(value), at)
    return (number >> 1) ^ -(number & 1), at


@lru_cache(64)
def message_class(files: bytes, name: str) -> Any:
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(descriptor(files, name))


def _converter(message: Any) -> Convert:
    fields = [(field.name, field.has_presence, _field(field)) for field in message.fields]

    def convert(found: Any) -> dict[str, Any]:
        return {
            name: None if present and not found.HasField(name) else of(getattr(found, name))
            for name, present, of in fields
        }

    return convert


def _field(field: Any) -> Convert:
    if is_map(field):
        of = _one(field.message_type.fields_by_name["value"])
        return lambda values: [(key, of(value)) for key, value in sorted(values.items())]
    one = _one(field)
    return (lambda values: [one(each) for each in values]) if field.is_repeated else one


def _one(field: Any) -> Convert:
    if field.type == ENUM:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return lambda value: names.get(value, str(value))
    if field.type == STRING:
        return _text
    if field.message_type is None:
        return _same
    if field.message_type.full_name == TIMESTAMP:
        return _micros
    if field.message_type.full_name in WRAPPERS:
        return lambda value: value.value
    return _converter(field.message_type)


def _text(value: Any) -> str:
    """Proto2's parsers take bytes that are no UTF-8."""
    if isinstance(value, bytes):
        raise Altered("a text is not UTF-8")
    return str(value)


def _micros(time: Any) -> int:
    if not SECONDS[0] <= time.seconds <= SECONDS[1] or not 0 <= time.nanos < 1_000_000_000:
        raise Altered("a Timestamp is not in the years 1 to 9999")
    if time.nanos % 1000:
        raise Altered("a Timestamp is finer than microseconds")
    return int(time.seconds) * 1_000_000 + int(time.nanos) // 1000


def _same(value: Any) -> Any:
    return value
