"""Protobuf schemas of a registry: their messages as Spark's types, and the values of messages as rows.

The registry sends them compiled (`format=serialized`), so nothing here parses .proto text. A value names its message by
indexes after the schema's id: (0,) is the first of the file, (1, 0) the first within the second.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

from onceonly.kafka.registry import HEAD, protobuf_wire, read_id
from onceonly.kafka.registry.client import Schema
from onceonly.kafka.registry.protobuf_wire import Altered

MAIN = "onceonly_main.proto"
ROOTS = ("", "confluent_kafka.schema_registry.")  # packages with files that many schemas import
TIMESTAMP = "google.protobuf.Timestamp"
WRAPPERS = {  # messages of one field, which stand for a value that may be null
    *("google.protobuf.DoubleValue", "google.protobuf.FloatValue", "google.protobuf.BoolValue"),
    *("google.protobuf.Int64Value", "google.protobuf.UInt64Value", "google.protobuf.Int32Value"),
    *("google.protobuf.UInt32Value", "google.protobuf.StringValue", "google.protobuf.BytesValue"),
}
COMMON = ("google/protobuf/", "google/type/", "confluent/")  # files that every registry knows
SECONDS = (-62_135_596_800, 253_402_300_799)  # of Timestamps: 0001-01-01 to 9999-12-31, since 1970
TYPES = {  # of descriptor.proto; enums and messages are not here
    1: "double", 2: "float", 3: "long", 4: "decimal(20,0)", 5: "integer", 6: "decimal(20,0)", 7: "long", 8: "boolean",
    9: "string", 12: "binary", 13: "long", 15: "integer", 16: "long", 17: "integer", 18: "long",
}  # fmt: skip
STRING, MESSAGE, ENUM = 9, 11, 14
WIDER_FIELD_TYPES = {(5, 3), (13, 4), (13, 3), (17, 18), (14, 5), (14, 3)}  # (written, read), beside the same type


class Unusable(Exception):
    """Why a schema cannot be used."""


# ---- schemas


def files(schema: Schema) -> bytes:
    """Return the schema with all that it imports, as a serialized FileDescriptorSet.

    Raises:
        Unusable: it is not compiled, or imports what is not known here.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    files_by_name = dict(_files(schema, MAIN))
    return bytes(FileDescriptorSet(file=files_by_name.values()).SerializeToString())


def parse_descriptor_set(data: bytes) -> tuple[str, bytes]:
    """Return the last file of a FileDescriptorSet, as text for a registry; and all of them, as from `files`.

    Raises:
        Unusable: it is no such set, or the file imports others that would have to be registered before it.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        descriptor_set = FileDescriptorSet.FromString(data)
    except DecodeError as error:
        raise Unusable(f"it is not a FileDescriptorSet: {error}") from None
    if not descriptor_set.file or not descriptor_set.file[-1].message_type:
        raise Unusable("it describes no message")
    main = descriptor_set.file[-1]
    if foreign_imports := [name for name in main.dependency if not name.startswith(COMMON)]:
        raise Unusable(f"it imports {foreign_imports[0]}; write the types of both into one file")
    text = base64.b64encode(main.SerializeToString()).decode()
    return text, files(Schema(0, "PROTOBUF", text))


def indexes_text(indexes: tuple[int, ...]) -> bytes:
    """Return the indexes as they stand before a message; a single zero for the first one. See `parsed_indexes`."""
    if indexes == (0,):
        return b"\0"
    return b"".join(map(_zigzag, (len(indexes), *indexes)))


def _zigzag(number: int) -> bytes:
    """Return a number that is not negative as a zigzag varint: seven bits a byte, the lowest first."""
    remaining, content = number << 1, bytearray()
    while remaining > 0x7F:
        content.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    return bytes([*content, remaining])


def message_at(files: bytes, indexes: tuple[int, ...]) -> str:
    """Return the full name of a message of the file.

    Raises:
        Unusable: it has no such message.
    """
    try:
        message = _main_file(files).message_type[indexes[0]]
        name = f"{_main_file(files).package}.{message.name}".lstrip(".")
        for index in indexes[1:]:
            message = message.nested_type[index]
            name = f"{name}.{message.name}"
    except IndexError:
        raise Unusable(f"it has no message {list(indexes)}") from None
    return name


def indexes_of(files: bytes, name: str) -> tuple[int, ...] | None:
    """Return the indexes of the message with that full name; None: there is none. The inverse of `message_at`."""
    main = _main_file(files)
    for indexes, message_name in _messages(main.message_type, main.package, ()):
        if message_name == name:
            return indexes
    return None


def spark_type(files: bytes, name: str) -> dict[str, Any]:
    """Return the message as Spark's struct, in the JSON form of types.

    Raises:
        Unusable: there is no such message, or it contains itself.
    """
    return _struct(descriptor(files, name), ())


def find_misfit(written: bytes, read: bytes, name: str) -> str | None:
    """Return why values of the one cannot be read as the other; None if they can.

    A parser alone would leave out fields.
    """
    return _misfit(descriptor(written, name), descriptor(read, name), set())


def _files(schema: Schema, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the name and descriptor of the schema's file and of all that it imports; those first that others import."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    references = set()
    for imported, other in schema.references:
        references.add(imported)
        yield from _files(other, imported)
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(schema.text, validate=True))
    except Exception as error:
        raise Unusable(f"schema {schema.id} is not compiled: the registry does not know format=serialized") from error
    for imported in set(file.dependency) - references:
        yield from _common_files(imported)
    file.name = name
    yield name, file


def _common_files(path: str) -> Iterator[tuple[str, Any]]:
    """Yield a file that comes with protobuf, or with Confluent's client, after the files that it imports."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    module = path.removesuffix(".proto").replace("/", ".") + "_pb2"
    for root in ROOTS:
        try:
            file_descriptor = import_module(root + module).DESCRIPTOR
        except ImportError:
            continue
        for dependency in file_descriptor.dependencies:
            yield from _common_files(dependency.name)
        file = FileDescriptorProto()
        file_descriptor.CopyToProto(file)
        file.name = path
        yield path, file
        return
    raise Unusable(f"it imports {path}, which is not one of its references")


@lru_cache(64)
def _main_file(files: bytes) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    return next(file for file in FileDescriptorSet.FromString(files).file if file.name == MAIN)


def _messages(messages: Any, package: str, at: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield indexes and full name of each message, and of those within it."""
    for index, message in enumerate(messages):
        name = f"{package}.{message.name}".lstrip(".")
        yield (*at, index), name
        yield from _messages(message.nested_type, name, (*at, index))


@lru_cache(64)
def descriptor(files: bytes, name: str) -> Any:
    """Return protobuf's descriptor of the message with that full name.

    Raises:
        Unusable: there is none, or the files do not fit together.
    """
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
    fields = []
    for field in message.fields:
        fields.append({"name": field.name, "type": _type(field, inside), "nullable": True, "metadata": {}})
    return {"type": "struct", "fields": fields}


def _type(field: Any, within: tuple[str, ...]) -> Any:
    if is_map(field):
        entry = field.message_type.fields_by_name
        key_type, value_type = _value_type(entry["key"], within), _value_type(entry["value"], within)
        return {"type": "map", "keyType": key_type, "valueType": value_type, "valueContainsNull": True}
    value_type = _value_type(field, within)
    if field.is_repeated:
        return {"type": "array", "elementType": value_type, "containsNull": True}
    return value_type


def _value_type(field: Any, within: tuple[str, ...]) -> Any:
    """Return the type of one value of the field, whether or not it is repeated."""
    if field.type == ENUM:
        return "string"
    if field.message_type is None:
        return TYPES[field.type]
    name = field.message_type.full_name
    if name in WRAPPERS:
        return TYPES[field.message_type.fields_by_name["value"].type]
    if name == TIMESTAMP:
        return "timestamp"
    return _struct(field.message_type, within)


def is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _misfit(written: Any, read: Any, compared: set[tuple[str, str]]) -> str | None:
    """Compare two messages; pairs that are in `compared` already fit, or are being compared: messages may be nested."""
    pair = written.full_name, read.full_name
    if pair in compared:
        return None
    compared.add(pair)
    for field in read.fields:
        written_field = written.fields_by_number.get(field.number)
        if written_field is None:
            continue
        is_same_type = field.type == written_field.type or (written_field.type, field.type) in WIDER_FIELD_TYPES
        if not is_same_type or field.is_repeated != written_field.is_repeated:
            return f"field {field.number} ('{field.name}') of '{read.full_name}' is written as another type"
        if field.type == MESSAGE:
            why = _misfit(written_field.message_type, field.message_type, compared)
            if why:
                return why
    return None


# ---- values


Convert = Callable[[Any], Any]


def reader(files: bytes, name: str, allowed: Mapping[int, tuple[int, ...]]) -> Convert:
    """Return a function of a whole value, head included.

    It returns {'value': row, 'why': None}; or {'value': None, 'why': why it cannot be read, as a clause}; or None for
    what has no head, or another schema's.

    Args:
        allowed: by schema id: the indexes of the message that is read; other messages of the file are not.
    """
    message_type, convert = message_class(files, name), _message_converter(descriptor(files, name))

    def read(value: bytes | None) -> dict[str, Any] | None:
        if value is None:
            return None
        id = read_id(value)
        if id is None or id not in allowed:
            return None
        try:
            indexes, start = parsed_indexes(value, HEAD)
            if allowed[id] != indexes:
                return _bad_value(f"it is another message of its schema, and not {name}")
            return {"value": convert(_parse_exactly(message_type, value[start:])), "why": None}
        except Altered as error:
            return _bad_value(str(error))
        except Exception:  # a parser may raise anything for malformed bytes
            return _bad_value("its bytes are no such message")

    return read


def _bad_value(why: str) -> dict[str, Any]:
    return {"value": None, "why": why}


def _parse_exactly(message_type: Any, data: bytes) -> Any:
    """Return the message that the bytes are. Raises Altered, or what a parser raises.

    A message without unknown fields that has the same bytes when it is written again has lost nothing. Others may be
    written in another order or by another library: their fields are looked at one by one.
    """
    message = message_type.FromString(data)
    if not message.IsInitialized():
        raise Altered("a required field is missing")
    message.DiscardUnknownFields()
    if message.SerializeToString(deterministic=True) != data:
        protobuf_wire.check(data, message_type.DESCRIPTOR)
    return message


def payload_reader(files: bytes, name: str) -> Convert:
    """Return a function of what follows the id in a value that was written as this message.

    It returns the value's row, as from `reader`.
    """
    message_type, convert = message_class(files, name), _message_converter(descriptor(files, name))

    def read(value: bytes) -> Any:
        _, start = parsed_indexes(value, 0)
        return convert(message_type.FromString(value[start:]))

    return read


def parsed_indexes(value: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return the message's indexes, and where the message begins. A single zero stands for the first one.

    Raises:
        ValueError: they cannot be parsed.
    """
    count, at = _read_zigzag(value, at)
    if count == 0:
        return (0,), at
    if count < 0:
        raise ValueError(count)
    indexes = []
    for _ in range(count):
        index, at = _read_zigzag(value, at)
        indexes.append(index)
    return tuple(indexes), at


def _read_zigzag(value: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag number, and where what follows it begins."""
    number, at = protobuf_wire.varint(memoryview(value), at)
    return (number >> 1) ^ -(number & 1), at


@lru_cache(64)
def message_class(files: bytes, name: str) -> Any:
    """Return protobuf's class of the message with that full name."""
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(descriptor(files, name))


def _message_converter(message: Any) -> Convert:
    """Return a function of such a message: its row, with None for each field that has presence and is not set."""
    fields = []
    for field in message.fields:
        fields.append((field.name, field.has_presence, _field_converter(field)))

    def convert(value: Any) -> dict[str, Any]:
        row = {}
        for name, has_presence, convert_field in fields:
            is_null = has_presence and not value.HasField(name)
            row[name] = None if is_null else convert_field(getattr(value, name))
        return row

    return convert


def _field_converter(field: Any) -> Convert:
    if is_map(field):
        convert_value = _value_converter(field.message_type.fields_by_name["value"])
        return lambda entries: [(key, convert_value(value)) for key, value in sorted(entries.items())]
    convert = _value_converter(field)
    if field.is_repeated:
        return lambda values: [convert(value) for value in values]
    return convert


def _value_converter(field: Any) -> Convert:
    """Return a function of one value of the field, whether or not it is repeated."""
    if field.type == ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    if field.type == STRING:
        return _text
    if field.message_type is None:
        return _identity
    if field.message_type.full_name == TIMESTAMP:
        return _micros
    if field.message_type.full_name in WRAPPERS:
        return lambda wrapper: wrapper.value
    return _message_converter(field.message_type)


def _text(value: Any) -> str:
    """Return the text, which has to be one: Proto2's parsers take bytes that are no UTF-8. Raises Altered."""
    if isinstance(value, bytes):
        raise Altered("a text is not UTF-8")
    return str(value)


def _micros(time: Any) -> int:
    """Return a Timestamp in microseconds since 1970. Raises Altered where that is another time."""
    if not SECONDS[0] <= time.seconds <= SECONDS[1] or not 0 <= time.nanos < 1_000_000_000:
        raise Altered("a Timestamp is not in the years 1 to 9999")
    if time.nanos % 1000:
        raise Altered("a Timestamp is finer than microseconds")
    return int(time.seconds) * 1_000_000 + int(time.nanos) // 1000


def _identity(value: Any) -> Any:
    return value
