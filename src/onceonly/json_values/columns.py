"""The columns of a `.ddl` file, as the JSON form of Spark's types. Parsed here, so that `check` needs no Spark."""

from __future__ import annotations

import re
from typing import Any

ALIASES = {
    "BOOLEAN": "boolean",
    "TINYINT": "byte",
    "BYTE": "byte",
    "SMALLINT": "short",
    "SHORT": "short",
    "INT": "integer",
    "INTEGER": "integer",
    "BIGINT": "long",
    "LONG": "long",
    "FLOAT": "float",
    "REAL": "float",
    "DOUBLE": "double",
    "STRING": "string",
    "BINARY": "binary",
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP_LTZ": "timestamp",
    "TIMESTAMP_NTZ": "timestamp_ntz",
}
DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
MAX_PRECISION = 38
TOKENS = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)|`(?P<quoted>(?:[^`]|``)+)`|(?P<word>\w+)|(?P<mark>[<>(),:;])"""
    r"""|(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")""",
    re.DOTALL,
)


class BadColumns(ValueError):
    """Why the text cannot be used."""


def parse_columns(ddl: str) -> dict[str, Any]:
    """Parse the columns of a record; return their struct.

    Raises:
        BadColumns: it is no DDL, or has a type that JSON values are not read as.
    """
    return _Parser(_tokens(ddl)).columns()


def _tokens(ddl: str) -> list[tuple[str, str]]:
    """Split the text into tokens: pairs of a kind, which is a group of TOKENS, and the text."""
    tokens: list[tuple[str, str]] = []
    position = 0
    while position < len(ddl):
        match = TOKENS.match(ddl, position)
        if match is None:
            raise BadColumns(f"{ddl[position : position + 20]!r} is not understood")
        position, kind = match.end(), str(match.lastgroup)
        if kind == "quoted":
            tokens.append((kind, match[kind].replace("``", "`")))
        elif kind != "space":
            tokens.append((kind, match[kind]))
    return tokens


class _Parser:
    """A recursive descent over the tokens: each method consumes what it is named after."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens, self._next = tokens, 0

    def columns(self) -> dict[str, Any]:
        is_struct = [text.upper() for _, text in self._tokens[:2]] == ["STRUCT", "<"]
        type_ = self._type() if is_struct else self._struct()
        if self._next < len(self._tokens):
            raise BadColumns(f"{self._tokens[self._next][1]!r} is not expected")
        if not type_["fields"]:
            raise BadColumns("there is no column")
        return dict(type_)

    def _struct(self) -> dict[str, Any]:
        fields = [self._field()]
        while self._take(","):
            fields.append(self._field())
        names: set[str] = set()
        for field in fields:
            if field["name"] in names:
                raise BadColumns(f"the column {field['name']!r} is there twice")
            names.add(field["name"])
        return {"type": "struct", "fields": fields}

    def _field(self) -> dict[str, Any]:
        name = self._name()
        self._take(":")
        type_ = self._type()
        nullable = not self._take("NOT", "NULL")
        metadata = {}
        if self._take("COMMENT"):
            metadata["comment"] = self._text()
        return {"name": name, "type": type_, "nullable": nullable, "metadata": metadata}

    def _type(self) -> Any:
        word = self._name().upper()
        if word in DECIMALS:
            return self._decimal()
        if word == "ARRAY":
            return {"type": "array", "elementType": self._type_parameters(1)[0], "containsNull": True}
        if word == "MAP":
            key, value = self._type_parameters(2)
            if key != "string":
                raise BadColumns("the keys of a MAP have to be STRING, as all names in JSON are")
            return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
        if word == "STRUCT":
            self._need("<")
            type_ = self._struct()
            self._need(">")
            return type_
        if word not in ALIASES:
            raise BadColumns(f"JSON values are not read as {word}, only as {', '.join(_readable_types())}")
        return ALIASES[word]

    def _type_parameters(self, count: int) -> list[Any]:
        """Consume `<`, this many types, and `>`."""
        self._need("<")
        types = [self._type()]
        while len(types) < count:
            self._need(",")
            types.append(self._type())
        self._need(">")
        return types

    def _decimal(self) -> str:
        precision, scale = 10, 0
        if self._take("("):
            precision = self._number()
            if self._take(","):
                scale = self._number()
            self._need(")")
        if not (0 < precision <= MAX_PRECISION and scale <= precision):
            raise BadColumns(f"DECIMAL({precision},{scale}) does not exist")
        return f"decimal({precision},{scale})"

    # ---- tokens

    def _take(self, *texts: str) -> bool:
        """Consume these words or marks and return True, if they come next."""
        following = self._tokens[self._next : self._next + len(texts)]
        if [text.upper() for kind, text in following if kind != "quoted"] != list(texts):
            return False
        self._next += len(texts)
        return True

    def _need(self, text: str) -> None:
        if not self._take(text):
            raise BadColumns(f"{text!r} is missing {self._position()}")

    def _name(self) -> str:
        return self._take_any("word", "quoted")

    def _number(self) -> int:
        text = self._take_any("word")
        if not text.isdecimal():
            raise BadColumns(f"{text!r} is no number")
        return int(text)

    def _text(self) -> str:
        return self._take_any("text")[1:-1]

    def _take_any(self, *kinds: str) -> str:
        """Consume a token of one of these kinds; return its text."""
        if self._next == len(self._tokens) or self._tokens[self._next][0] not in kinds:
            raise BadColumns(f"a name or type is missing {self._position()}")
        self._next += 1
        return self._tokens[self._next - 1][1]

    def _position(self) -> str:
        if self._next == len(self._tokens):
            return "at the end"
        return f"before {self._tokens[self._next][1]!r}"


def _readable_types() -> list[str]:
    """Return the names of the types, without those that are another word for one of them."""
    synonyms = {"BYTE", "SHORT", "INTEGER", "LONG", "REAL"}
    return [*sorted(ALIASES.keys() - synonyms), "DECIMAL", "ARRAY", "MAP", "STRUCT"]
