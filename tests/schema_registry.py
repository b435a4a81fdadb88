"""A small schema registry over HTTP, for tests: the paths, answers and error codes of Confluent's, in memory.

What it does not have: contexts, exporters, rules, soft deletes, and compatibility of anything but Avro and JSON.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from fastavro import parse_schema

CONTENT = "application/vnd.schemaregistry.v1+json"


class Refused(Exception):
    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


@dataclass
class FakeRegistry:
    """
    Args:
        login: name:password, where it asks for one; or 'Bearer' and a token, as the client sends them.
        forbidden: subjects that nobody may read or write.
        failing: the status of every answer, as of a registry in trouble.
        versions_are_text: whether it shows .proto text for a version whatever is asked for, as Karapace does.
    """

    login: str | None = None
    forbidden: set[str] = field(default_factory=set)
    failing: int | None = None
    versions_are_text: bool = False
    requests: list[str] = field(default_factory=list)
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    levels: dict[str, str] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)
    first_id: int = 1
    url: str = ""

    def register(self, subject: str, text: Any, kind: str = "AVRO", references: Any = ()) -> int:
        """As its clients do; returns the id."""
        schema = text if isinstance(text, str) else json.dumps(text)
        body = {"schema": schema, "schemaType": kind, "references": list(references)}
        return int(self._register(subject, body)["id"])

    # ---- answers

    def answer(self, method: str, path: str, query: Mapping[str, list[str]], body: Any) -> Any:
        routes: list[tuple[str, str, Callable[..., Any]]] = [
            ("GET", r"/subjects", lambda: sorted(self.subjects)),
            ("GET", r"/schemas/types", lambda: ["JSON", "PROTOBUF", "AVRO"]),
            ("GET", r"/schemas/ids/(\d+)", self._by_id),
            ("GET", r"/subjects/([^/]+)/versions", lambda s: list(range(1, len(self._versions(s)) + 1))),
            ("GET", r"/subjects/([^/]+)/versions/([^/]+)", self._version),
            ("POST", r"/subjects/([^/]+)/versions", lambda s: self._register(s, body)),
            ("POST", r"/subjects/([^/]+)", lambda s: self._lookup(s, body)),
            ("POST", r"/compatibility/subjects/([^/]+)/versions(?:/[^/]+)?", lambda s: self._compatible(s, body)),
            ("GET", r"/config(?:/([^/]+))?", lambda s: {"compatibilityLevel": self._level(s)}),
            ("PUT", r"/config(?:/([^/]+))?", lambda s: self._set(self.levels, s, body["compatibility"], body)),
            ("GET", r"/mode(?:/([^/]+))?", lambda s: {"mode": self._mode(s)}),
            ("PUT", r"/mode(?:/([^/]+))?", lambda s: self._set(self.modes, s, body["mode"], body)),
        ]
        for wanted, pattern, do in routes:
            if method == wanted and (found := re.fullmatch(pattern, path)):
                parts = [unquote(part) if part else "" for part in found.groups()]
                if "subjects" in path and parts and parts[0] in self.forbidden:
                    raise Refused(403, 40301, "User is denied operation on this subject")
                form = "" if self.versions_are_text and "/versions/" in path else query.get("format", [""])[0]
                return _as_asked(do(*parts), form)
        raise Refused(404, 404, "HTTP 404 Not Found")

    def _versions(self, subject: str) -> list[int]:
        if subject not in self.subjects:
            raise Refused(404, 40401, f"Subject '{subject}' not found.")
        return self.subjects[subject]

    def _by_id(self, id: str) -> Any:
        if int(id) not in self.schemas:
            raise Refused(404, 40403, f"Schema {id} not found")
        return _shown(self.schemas[int(id)])

    def _version(self, subject: str, version: str) -> Any:
        ids = self._versions(subject)
        number = len(ids) if version in ("latest", "-1") else int(version) if version.isdecimal() else 0
        if number < 1:
            raise Refused(422, 42202, f"The specified version '{version}' is not a valid version id.")
        if number > len(ids):
            raise Refused(404, 40402, f"Version {version} not found.")
        return {"subject": subject, "version": number, "id": ids[number - 1], **_shown(self.schemas[ids[number - 1]])}

    def _lookup(self, subject: str, body: Any) -> Any:
        wanted = self._checked(body)
        for number, id in enumerate(self._versions(subject), 1):
            if self.schemas[id] == wanted:
                return self._version(subject, str(number))
        raise Refused(404, 40403, "Schema not found")

    def _register(self, subject: str, body: Any) -> Any:
        schema = self._checked(body)
        ids = self.subjects.get(subject, [])
        if known := [id for id in ids if self.schemas[id] == schema]:
            return {"id": known[0]}
        if self._mode(subject) == "READONLY":
            raise Refused(422, 42205, f"Subject {subject} is in read-only mode")
        if ids and not self._fits(subject, schema):
            raise Refused(409, 409, f'Schema being registered is incompatible with an earlier schema for "{subject}"')
        same = next((id for id, known_schema in self.schemas.items() if known_schema == schema), None)
        id = same or max(self.schemas, default=self.first_id - 1) + 1
        self.schemas[id] = schema
        self.subjects.setdefault(subject, []).append(id)
        return {"id": id}

    def _compatible(self, subject: str, body: Any) -> Any:
        self._versions(subject)
        return {"is_compatible": self._fits(subject, self._checked(body))}

    def _checked(self, body: Any) -> dict[str, Any]:
        kind = body.get("schemaType") or "AVRO"
        references = [dict(reference) for reference in body.get("references") or ()]
        named: dict[str, Any] = {}
        try:
            others = list(dict.fromkeys(self._texts(references)))
            if kind == "AVRO":
                for other in others:
                    parse_schema(json.loads(other), named_schemas=named)
                parse_schema(json.loads(body["schema"]), named_schemas=named)
            elif kind == "JSON":
                json.loads(body["schema"])
            else:
                base64.b64decode(body["schema"], validate=True)  # only the serialized form: there is no protoc here
        except Refused:
            raise
        except Exception as error:
            raise Refused(422, 42201, f"Invalid schema: {error}") from error
        canonical = (
            body["schema"] if kind == "PROTOBUF" else json.dumps(json.loads(body["schema"]))
        )  # else no white space
        return {"schema": canonical, "schemaType": kind, "references": references}

    def _texts(self, references: Any) -> Iterator[str]:
        """Of all that is referred to, those first that others refer to."""
        for reference in references:
            found = self._version(reference["subject"], str(reference["version"]))
            yield from self._texts(found.get("references", ()))
            yield found["schema"]

    def _fits(self, subject: str, schema: Mapping[str, Any]) -> bool:
        level = self._level(subject)
        if level == "NONE":
            return True
        old = json_or_none(self.schemas[self.subjects[subject][-1]]["schema"])
        new = json_or_none(schema["schema"])
        pairs = {"BACKWARD": [(old, new)], "FORWARD": [(new, old)], "FULL": [(old, new), (new, old)]}
        return all(can_read(writer, reader) for writer, reader in pairs[level.removesuffix("_TRANSITIVE")])

    def _level(self, subject: str) -> str:
        return self.levels.get(subject) or self.levels.get("") or "BACKWARD"

    def _mode(self, subject: str) -> str:
        return self.modes.get(subject) or self.modes.get("") or "READWRITE"

    def _set(self, where: dict[str, str], subject: str, value: str, body: Any) -> Any:
        where[subject] = value
        return body


def json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def can_read(writer: Any, reader: Any) -> bool:
    """Avro's rule for records, and its like for JSON objects, as far as the tests need them."""
    if not isinstance(writer, dict) or not isinstance(reader, dict):
        return bool(writer == reader or (writer, reader) in WIDER)
    if "properties" in reader:
        return all(writer.get("properties", {}).get(n, each) == each for n, each in reader["properties"].items())
    if reader.get("type") != "record" or writer.get("type") != "record":
        return bool(writer == reader)
    written = {each["name"]: each["type"] for each in writer["fields"]}
    return all(
        can_read(written[each["name"]], each["type"]) if each["name"] in written else "default" in each
        for each in reader["fields"]
    )


WIDER = {("int", "long"), ("int", "double"), ("long", "double"), ("float", "double")}


def _as_asked(answer: Any, form: str) -> Any:
    """Protobuf is shown as text unless format=serialized; here as text that nobody can use."""
    if isinstance(answer, dict) and answer.get("schemaType") == "PROTOBUF" and form != "serialized":
        return {**answer, "schema": 'syntax = "proto3";'}
    return answer


def _shown(schema: Mapping[str, Any]) -> dict[str, Any]:
    """As a real one: Avro has no schemaType, and nothing has empty references."""
    kind = {} if schema["schemaType"] == "AVRO" else {"schemaType": schema["schemaType"]}
    references = {"references": schema["references"]} if schema["references"] else {}
    return {"schema": schema["schema"], **kind, **references}


@contextmanager
def serving(registry: FakeRegistry, tls: SSLContext | None = None) -> Iterator[FakeRegistry]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            address = urlsplit(self.path)
            registry.requests.append(f"{self.command} {address.path}")
            try:
                self._check()
                status, said = 200, registry.answer(self.command, address.path, parse_qs(address.query), body)
            except Refused as error:
                status, said = error.status, {"error_code": error.code, "message": error.message}
            self._send(status, said)

        do_GET = do_POST = do_PUT = handle_any

        def _check(self) -> None:
            if registry.failing:
                raise Refused(registry.failing, 50001, "Error in the backend data store")
            login = registry.login or ""
            basic = f"Basic {base64.b64encode(login.encode()).decode()}"
            if login and self.headers.get("Authorization") != (login if login.startswith("Bearer ") else basic):
                raise Refused(401, 401, "Unauthorized")

        def _send(self, status: int, said: Any) -> None:
            text = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", CONTENT)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls:  # shaken hands in the thread of the connection, so that a client that gives up ends only its own
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    registry.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
