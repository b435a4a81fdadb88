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

from onceonly.storage.interface import MAX_PARALLEL_REQUESTS
from onceonly.storage.logins import find_google_key_file, snapshot_variables
from onceonly.storage.object_files import MARK_KEY, StoredObject, UnmetCondition
from onceonly.waits import wait_for

TIMEOUT_SECONDS = (10.0, 60.0)  # to connect, and for a response
T = TypeVar("T")


class Bucket:
    """The bucket of that name. Nothing is asked before the first request."""

    server = "GOOGLE_SERVICE_ACCOUNT"

    def __init__(self, name: str) -> None:
        self.name, self.root = name, f"gs://{name}"

    @property
    def endpoint(self) -> str:
        return _find_server(find_google_key_file(os.environ)) or "https://storage.googleapis.com"

    def find(self, uri: str) -> StoredObject | None:
        blob = self._ask(uri, lambda: self._bucket.get_blob(self._key(uri), timeout=TIMEOUT_SECONDS))
        if not blob:
            return None
        return StoredObject(int(blob.size), str(blob.generation), (blob.metadata or {}).get(MARK_KEY, ""))

    def get(self, uri: str) -> bytes:
        return bytes(self._ask(uri, lambda: self._blob(uri).download_as_bytes(timeout=TIMEOUT_SECONDS)))

    def put(self, uri: str, content: bytes) -> None:
        self._ask(uri, lambda: self._blob(uri).upload_from_string(content, timeout=TIMEOUT_SECONDS))

    def copy(self, old: str, source: StoredObject, new: str, mark: str) -> None:
        """Copy an object. A large one takes several requests, and its name appears with the last one."""
        old_blob, new_blob = self._blob(old), self._blob(new)
        new_blob.metadata, new_blob.content_type = {MARK_KEY: mark}, "application/octet-stream"
        conditions = {"if_generation_match": 0, "if_source_generation_match": int(source.etag)}

        def copy_part(token: str | None) -> str | None:
            next_token: str | None = new_blob.rewrite(old_blob, token, timeout=TIMEOUT_SECONDS, **conditions)[0]
            return next_token

        token = self._ask(new, lambda: copy_part(None))
        while token:
            token = self._ask(new, partial(copy_part, token))

    def list_names(self, folder: str) -> Iterator[str]:
        prefix = f"{self._key(folder)}/"
        pages = self._client.list_blobs(self.name, prefix=prefix, timeout=TIMEOUT_SECONDS).pages
        while (page := self._ask(folder, lambda: next(pages, None))) is not None:
            for blob in page:
                yield blob.name.removeprefix(prefix)

    def list_entries(self, folder: str, most: int | None = None) -> list[str]:
        prefix = f"{self._key(folder)}/"
        blobs = self._client.list_blobs(
            self.name, prefix=prefix, delimiter="/", max_results=most, timeout=TIMEOUT_SECONDS
        )
        pages = blobs.pages
        paths: list[str] = []
        while (page := self._ask(folder, lambda: next(pages, None))) is not None:
            for blob in page:
                paths.append(blob.name)
        paths += blobs.prefixes  # complete only after the last page
        names = {path.removeprefix(prefix).rstrip("/") for path in paths}
        return sorted(names - {""})

    def unlink(self, uris: Sequence[str]) -> None:
        with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
            list(pool.map(self._delete, uris))

    def _delete(self, uri: str) -> None:
        with suppress(FileNotFoundError):
            self._ask(uri, lambda: self._blob(uri).delete(timeout=TIMEOUT_SECONDS))

    def _blob(self, uri: str) -> Any:
        return self._bucket.blob(self._key(uri))

    def _key(self, uri: str) -> str:
        """Return the key of a URI. Raises FileNotFoundError: it is in another bucket."""
        if not uri.startswith(f"{self.root}/"):
            raise FileNotFoundError(f"{uri} is not in {self.root}")
        return uri.removeprefix(f"{self.root}/")

    @property
    def _bucket(self) -> Any:
        return self._client.bucket(self.name)

    @property
    def _client(self) -> Any:
        variables = snapshot_variables("GOOGLE_")
        try:
            return _client(os.getpid(), variables)
        except login.TransportError as error:
            raise ConnectionError(f"{self.root}: the server that logs in does not answer") from error
        except login.GoogleAuthError as error:
            raise PermissionError(f"{self.root}: {type(error).__name__}") from error

    def _ask(self, uri: str, request: Callable[[], T]) -> T:
        try:
            with wait_for(self.root):
                return request()
        except google.NotFound as error:
            raise FileNotFoundError(f"{uri}: not found") from error
        except google.PreconditionFailed as error:
            raise UnmetCondition(uri) from error
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
    """Make a client for these variables. `process`: connections are not shared with a child."""
    file = find_google_key_file(dict(environment))
    server = _find_server(file)
    options = {"api_endpoint": server} if server else None
    if file is None:
        return Client(client_options=options)
    key = _read_key_file(file)
    if key.get("disable_oauth"):
        return Client(key.get("project_id") or "none", AnonymousCredentials(), client_options=options)  # type: ignore[no-untyped-call]
    return Client.from_service_account_json(str(file), client_options=options)


def _find_server(file: Path | None) -> str | None:
    """Return the address of the server that a key file names; None: it names none, or there is no key file."""
    if file is None:
        return None
    address = _read_key_file(file).get("gcs_base_url")
    return str(address) if address else None


def _read_key_file(file: Path) -> Mapping[str, Any]:
    """Return its content. Raises PermissionError also where there is no such file: no object is missing."""
    try:
        key: Mapping[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise PermissionError(f"the key file {file} cannot be read ({type(error).__name__})") from error
    return key
