"""Protobuf schemas for tests, compiled by hand: there is no protoc here."""

from __future__ import annotations

import base64
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import DESCRIPTOR as TIMESTAMP
from google.protobuf.wrappers_pb2 import DESCRIPTOR as WRAPPERS

F = FieldDescriptorProto
KINDS = {"int32": F.TYPE_INT32, "int64": F.TYPE_INT64, "string": F.TYPE_STRING, "bool": F.TYPE_BOOL}


def field(number: int, name: str, kind: str, *, repeated: bool = False, optional: bool = False) -> F:
    """`kind`: one of KINDS, or '.package.Message', or 'enum .package.Enum'."""
    label = F.LABEL_REPEATED if repeated else F.LABEL_OPTIONAL
    made = F(name=name, number=number, label=label)
    if kind in KINDS:
        made.type = KINDS[kind]
    else:
        made.type = F.TYPE_ENUM if kind.startswith("enum ") else F.TYPE_MESSAGE
        made.type_name = kind.removeprefix("enum ")
    if optional:
        made.proto3_optional, made.oneof_index = True, 0
    return made


def message(name: str, *fields: F, nested: list[DescriptorProto] | None = None) -> DescriptorProto:
    made = DescriptorProto(name=name, field=fields, nested_type=nested or [])
    if any(each.proto3_optional for each in fields):
        made.oneof_decl.add(name="_one")
    return made


def file(*messages: DescriptorProto, name: str = "default", imports: tuple[str, ...] = ()) -> FileDescriptorProto:
    return FileDescriptorProto(
        name=name, package="shop", syntax="proto3", message_type=messages, dependency=list(imports)
    )


def text(made: FileDescriptorProto) -> str:
    """As a registry shows it with format=serialized, and as Confluent's serializer registers it."""
    return base64.b64encode(made.SerializeToString()).decode()


def of(full_name: str, *files: FileDescriptorProto) -> Any:
    """The class of a message; files that others import come first."""
    pool = DescriptorPool()
    for common in (TIMESTAMP, WRAPPERS):
        pool.AddSerializedFile(common.serialized_pb)
    for each in files:
        pool.AddSerializedFile(each.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(full_name))
