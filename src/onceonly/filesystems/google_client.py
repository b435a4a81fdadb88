"""Requests to one bucket of Google Cloud Storage, by Google's own client, with the errors of a local file system.

The environment says who asks, by the variables that delta-rs reads: GOOGLE_SERVICE_ACCOUNT is the path of a key file,
which may name another server (`gcs_base_url`); without it, Google's usual chain counts. Nothing is stored, and no error
shows it. What is said of errors: `object_files.Store`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import requests
from google.api_core import exceptions as google
from google.auth import exceptions as login
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client  # type: ignore[import-untyped]
from google.cloud.storage.exceptions import DataCorruption  # type: ignore[import-untyped]

from onceonly.filesystems.copies import Unmet
from onceonly.filesystems.google_names import key_file
from onceonly.filesystems.interface import AT_ONCE
from onceonly.filesystems.object_files import MARK, Found

WAIT = (10.0, 60.0)  # seconds: to connect, and for a response
T = TypeVar("T")


class Bucket:
    """The bucket of that name. Nothing is asked before the first request."""

    server = "GOOGLE_SERVICE_ACCOUNT"

    def __init__(self, name: str) -> None:
        self.name, self.root = name, f"gs://{name}"

    @property
    def endpoint(self) -> str:
        return _server(key_file(os.environ)) or "https://storage.googleapis.com"

    def find(self, uri: str) -> Found | None:
        told = self._ask(uri, lambda: self._bucket.get_blob(self._key(uri), timeout=WAIT))
        return Found(int(told.size), str(told.generation), (told.metadata or {}).get(MARK, "")) if told else None

    def get(self, uri: str) -> bytes:
        return bytes(self._ask(uri, lambda: self._blob(uri).download_as_bytes(timeout=WAIT)))

    def put(self, uri: str, content: bytes) -> None:
        self._ask(uri, lambda: self._blob(uri).upload_from_string(content, timeout=WAIT))

    def copy(self, old: str, found: Found, new: str, mark: str) -> None:
        """See `copies.CopyingStore`. A large object takes several requests; its name appears with the last one."""
        source, made = self._blob(old), self._blob(new)
        made.metadata, made.content_type = {MARK: mark}, "application/octet-stream"
        conditions = {"if_generation_match": 0, "if_source_generation_match": int(found.etag)}

        def step(token: str | None) -> str | None:
            found: str | None = made.rewrite(source, token, timeout=WAIT, **conditions)[0]
            return found

        token = self._ask(new, lambda: step(None))
        while token:
            token = self._ask(new, partial(step, token))

    def below(self, folder: str) -> Iterator[str]:
        prefix = f"{self._key(folder)}/"
        pages = self._client.list_blobs(self.name, prefix=prefix, timeout=WAIT).pages
        while (page := self._ask(folder, lambda: next(pages, None))) is not None:
            yield from (each.name.removeprefix(prefix) for each in page)

    def entries(self, folder: str, most: int | None = None) -> list[str]:
        prefix, found = f"{self._key(folder)}/", []
        listed = self._client.list_blobs(self.name, prefix=prefix, delimiter="/", max_results=most, timeout=WAIT)
        pages = listed.pages
        while (page := self._ask(folder, lambda: next(pages, None))) is not None:
            found += [each.name for each in page]
        names = (name.removeprefix(prefix).rstrip("/") for name in [*found, *listed.prefixes])
        return sorted({name for name in names if name})

    def unlink(self, uris: Sequence[str]) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self._delete, uris))

    def _delete(self, uri: str) -> None:
        with suppress(FileNotFoundError):
            self._ask(uri, lambda: self._blob(uri).delete(timeout=WAIT))

    def _blob(self, uri: str) -> Any:
        return self._bucket.blob(self._key(uri))

    def _key(self, uri: str) -> str:
        """Raises FileNotFoundError: it is in another bucket."""
        if not uri.startswith(f"{self.root}/"):
            raise FileNotFoundError(f"{uri} is not in {self.root}")
        return uri.removeprefix(f"{self.root}/")

    @property
    def _bucket(self) -> Any:
        return self._client.bucket(self.name)

    @property
    def _client(self) -> Any:
        known = {name: value for name, value in os.environ.items() if name.startswith("GOOGLE_")}
        try:
            return _client(os.getpid(), frozenset(known.items()))
        except login.TransportError as error:
            raise ConnectionError(f"{self.root}: the server that logs in does not answer") from error
        except login.GoogleAuthError as error:
            raise PermissionError(f"{self.root}: {type(error).__name__}") from error

    def _ask(self, uri: str, request: Callable[[], T]) -> T:
        try:
            return request()
        except google.NotFound as error:
            raise FileNotFoundError(f"{uri}: not found") from error
        except google.PreconditionFailed as error:
            raise Unmet(uri) from error
        except login.TransportError as error:
            raise ConnectionError(f"{self.root}: the server that logs in does not answer") from error
        except (google.Forbidden, google.Unauthorized, login.GoogleAuthError) as error:
            raise PermissionError(f"{uri}: {type(error).__name__}") from error
        except google.GoogleAPICallError as error:
            raise OSError(f"{uri}: {type(error).__name__} ({error.code})") from error
        except DataCorruption as error:
            raise ConnectionError(f"{uri}: what came is not what the store has") from error
        except (google.RetryError, requests.RequestException) as error:
            raise ConnectionError(f"{self.root} does not answer ({type(error).__name__})") from error


@lru_cache(maxsize=1)
def _client(process: int, environment: frozenset[tuple[str, str]]) -> Client:
    """`process`: connections are not shared with a child."""
    file = key_file(dict(environment))
    server = _server(file)
    options = {"api_endpoint": server} if server else None
    if file is None:
        return Client(client_options=options)
    told = _told(file)
    if told.get("disable_oauth"):
        return Client(told.get("project_id") or "none", AnonymousCredentials(), client_options=options)  # type: ignore[no-untyped-call]
    return Client.from_service_account_json(str(file), client_options=options)


def _server(file: Path | None) -> str | None:
    return str(_told(file)["gcs_base_url"]) if file and _told(file).get("gcs_base_url") else None


def _told(file: Path) -> Mapping[str, Any]:
    """Raises PermissionError also where there is no such file: no object is missing."""
    try:
        found: Mapping[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise PermissionError(f"the key file {file} cannot be read ({type(error).__name__})") from error
    return found
