"""fake-gcs-server, an emulator of Google Cloud Storage, where it was built.

go install github.com/fsouza/fake-gcs-server@v1.56.1

delta-rs uses Google's XML API, of which the emulator knows no put, no upload in parts, and no `start-after` of a list.
So a proxy before it makes a put one of the JSON API, under the same condition, joins parts, and shortens lists. Of the
JSON API itself it knows no condition of a copy: the proxy makes such a copy a put. What arbitrates is the emulator.
"""

from __future__ import annotations

import json
import re
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import requests
from integration.faults.s3_proxy import Answer, Handler, proxy
from integration.services.store_server import BUCKET, StoreServer, installed
from patience import PATIENCE

from onceonly.dev.services import machine

BINARY = installed("fake-gcs-server", "go/bin")
JSON = ("/storage/v1/", "/upload/", "/download/")  # of the emulator's own API
COPY = re.compile(r"/storage/v1(/b/[^/]+/o/.+?)/rewriteTo/b/([^/]+)/o/(.+)")
ENTRY = re.compile(rb"<Contents><Key>(.*?)</Key>.*?</Contents>")
MISSING = "fake-gcs-server is not installed: go install github.com/fsouza/fake-gcs-server@v1.56.1"
UPLOAD = b"<InitiateMultipartUploadResult><UploadId>%s</UploadId></InitiateMultipartUploadResult>"
UPLOADED = b"<CompleteMultipartUploadResult><ETag>whole</ETag></CompleteMultipartUploadResult>"
parts: dict[str, dict[int, bytes]] = defaultdict(dict)  # of uploads, in the proxy's process


class Translator(Handler):
    """From what the XML API asks to what the emulator answers."""

    def _ask(self, body: bytes) -> Answer | None:
        self.headers.replace_header("Host", f"127.0.0.1:{self.server.upstream}")
        asked = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if copied := COPY.fullmatch(urlsplit(self.path).path):
            return self._copy(body, asked, *copied.groups())
        if self.command in ("PUT", "POST") and not self.path.startswith(JSON):
            return self._part(body, asked) if {"uploads", "uploadId"} & set(asked) else self._put(body)
        found = super()._ask(body)
        after = asked.get("start-after")
        return (found[0], found[1], _after(found[2], after[0])) if found and after else found

    def _part(self, body: bytes, asked: Mapping[str, list[str]]) -> Answer | None:
        if "uploads" in asked:
            return 200, {}, UPLOAD % uuid.uuid4().hex.encode()
        upload = parts[asked["uploadId"][0]]
        if self.command == "PUT":
            upload[int(asked["partNumber"][0])] = body
            return 200, {"ETag": "part"}, b""
        self.path = urlsplit(self.path).path
        whole = b"".join(upload[number] for number in sorted(upload))
        self.headers.replace_header("Content-Length", str(len(whole)))
        found = self._put(whole)
        return (200, {}, UPLOADED) if found and found[0] == 200 else found

    def _copy(self, body: bytes, asked: Mapping[str, list[str]], source: str, bucket: str, name: str) -> Answer | None:
        """With conditions, of the client of this file system; without, as Spark's connector asks."""
        if "ifGenerationMatch" not in asked:
            return super()._ask(body)
        self.command, self.path = "GET", f"/storage/v1{source}"
        self.headers.replace_header("Content-Length", "0")
        found = super()._ask(b"")
        if found is None or found[0] != 200:
            return found
        if [json.loads(found[2])["generation"]] != asked["ifSourceGenerationMatch"]:
            return 412, {}, b"{}"
        self.path += "?alt=media"
        content = super()._ask(b"")
        return self._insert(bucket, unquote(name), json.loads(body), content[2]) if content else None

    def _insert(self, bucket: str, name: str, told: Mapping[str, Any], content: bytes) -> Answer | None:
        """A put in one request, with what the object's metadata says, on the condition that the name is free."""
        head = json.dumps({**told, "name": name}).encode()
        kinds = b"application/json", b"application/octet-stream"
        parts = [
            b"--part\r\nContent-Type: %s\r\n\r\n%s\r\n" % part for part in zip(kinds, (head, content), strict=True)
        ]
        body = b"".join([*parts, b"--part--\r\n"])
        for header, value in (("Content-Length", str(len(body))), ("Content-Type", "multipart/related; boundary=part")):
            del self.headers[header]
            self.headers[header] = value
        self.command = "POST"
        self.path = f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart&ifGenerationMatch=0"
        found = super()._ask(body)
        if found is None or found[0] != 200:
            return found
        size = str(len(content))
        made = {"done": True, "resource": json.loads(found[2]), "objectSize": size, "totalBytesRewritten": size}
        return 200, {"Content-Type": "application/json"}, json.dumps(made).encode()

    def _put(self, body: bytes) -> Answer | None:
        bucket, _, name = self.path.lstrip("/").partition("/")
        expected = self.headers.get("x-goog-if-generation-match")
        condition = f"&ifGenerationMatch={expected}" if expected else ""
        self.command, self.path = "POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}{condition}"
        found = super()._ask(body)
        if found is None or found[0] != 200:
            return found
        return 200, {"ETag": json.loads(found[2])["etag"]}, b""


def _after(listed: bytes, name: str) -> bytes:
    """What comes after that name."""
    return ENTRY.sub(lambda entry: entry[0] if unescape(entry[1].decode()) > name else b"", listed)


@dataclass
class Gcs(StoreServer):
    """See `StoreServer`."""

    front: int = 0  # the port of the translator
    backend: str = "filesystem"  # in which a folder that Spark marks is none; "memory" does not survive a kill
    scheme = "gs"
    timeout = "GOOGLE_TIMEOUT"
    handler = Translator

    @property
    def environment(self) -> Mapping[str, str]:
        return self.environment_at(self.front)

    def environment_at(self, port: int) -> Mapping[str, str]:
        account = self.folder / f"account-{port}.json"
        server = {"gcs_base_url": f"http://127.0.0.1:{port}", "disable_oauth": True}
        account.write_text(json.dumps({**server, "client_email": "", "private_key": "", "private_key_id": ""}))
        return {"GOOGLE_SERVICE_ACCOUNT": str(account)}

    def command(self) -> list[str]:
        here = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port)]
        kept = ["-backend", self.backend, "-filesystem-root", str(self.data)]
        return [str(BINARY), *here, "-public-host", f"127.0.0.1:{self.port}", *kept]

    def make_bucket(self) -> None:
        url = f"http://127.0.0.1:{self.port}/storage/v1/b?project=none"
        assert requests.post(url, json={"name": self.bucket}, timeout=PATIENCE).ok


@contextmanager
def server(bucket: str = BUCKET, backend: str = "filesystem") -> Iterator[Gcs]:
    with TemporaryDirectory(prefix="onceonly-gcs-") as folder:
        made = Gcs(Path(folder), machine.free_port(), bucket, backend=backend)
        try:
            made.start()
            made.make_bucket()
            with proxy(made) as translator:
                made.front = translator.port
                yield made
        finally:
            made.kill()
