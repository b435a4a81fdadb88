"""Requests to one container of Azure Blob Storage, by Microsoft's own client, with the errors of a local file system.

The environment says who asks, by the variables that delta-rs reads: an account's key, a SAS token, or else whatever
Azure's usual chain finds (a service principal, a workload's or a machine's identity). Nothing is stored, and no error
shows it. What is said of errors: `object_files.Store`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

from azure.core import MatchConditions
from azure.core import exceptions as azure
from azure.core.credentials import AzureNamedKeyCredential
from azure.identity import DefaultAzureCredential
from azure.storage.blob import BlobServiceClient

from onceonly.storage.azure_names import KEY, TOKEN, Place, is_emulated
from onceonly.storage.copies import Unmet
from onceonly.storage.interface import AT_ONCE
from onceonly.storage.object_files import MARK, Found

A_FOLDER = "hdi_isfolder"  # in the metadata of what marks a folder
KEYS = (KEY, "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
TOKENS = (TOKEN, "AZURE_STORAGE_SAS_KEY")
TAKEN = ("BlobAlreadyExists", "TargetConditionNotMet", "UnauthorizedBlobOverwrite")
MISSING = ("BlobNotFound", "ContainerNotFound", "SourceConditionNotMet", "CannotVerifyCopySource")
CONNECT_TIMEOUT_SECONDS, RESPONSE_TIMEOUT_SECONDS = 10.0, 60.0
MAX_REQUEST_TRIES = 4  # until one is answered
FAILED = ("failed", "aborted")  # copies, of which an empty object stays
COPY_POLL_SECONDS = 0.2  # between two looks at a copy that the store makes later
UNMET = "ConditionNotMet"
UNSIGNED = "AzureSigningError"  # the key is not in base64
T = TypeVar("T")


class Container:
    """The container of a place. Nothing is asked before the first request."""

    server = "AZURE_STORAGE_ACCOUNT_NAME, or AZURE_STORAGE_ENDPOINT"

    def __init__(self, place: Place) -> None:
        self.name, self.root, self._account = place.container, place.root, place

    @property
    def endpoint(self) -> str:
        return _address(self._account, os.environ)

    def find(self, uri: str) -> Found | None:
        """Return the object; None: there is none, or it marks a folder.

        Raises:
            OSError: the store is still copying it.
        """
        try:
            properties = self._ask(uri, lambda: self._blob(uri).get_blob_properties())
        except FileNotFoundError:
            return None
        metadata: Mapping[str, str] = properties.metadata or {}
        if metadata.get(A_FOLDER):
            return None
        if properties.copy.status == "pending":
            raise OSError(f"{uri} is still being copied")
        # What a failed copy has left has the mark, and not the content.
        mark = "" if properties.copy.status in FAILED else metadata.get(MARK, "")
        return Found(int(properties.size), str(properties.etag), mark)

    def get(self, uri: str) -> bytes:
        return bytes(self._ask(uri, lambda: self._blob(uri).download_blob().readall()))

    def put(self, uri: str, content: bytes) -> None:
        self._ask(uri, lambda: self._blob(uri).upload_blob(content, overwrite=True))

    def copy(self, old: str, source: Found, new: str, mark: str) -> None:
        """See `copies.CopyingStore`. A copy that the store makes later is waited for.

        The name is taken as soon as it has begun. What a copy that failed leaves there is removed, now or by the next.
        """
        try:
            answer = self._begin_copy(old, source, new, mark)
        except FileExistsError:
            if not self._remove_failed(new):
                raise
            answer = self._begin_copy(old, source, new, mark)
        status = answer["copy_status"]
        if status == "pending":
            status = self._await_copy(new, answer["copy_id"])
        if status != "success":
            self._remove_failed(new)
            raise OSError(f"{new}: the store did not copy it ({status})")

    def _begin_copy(self, old: str, source: Found, new: str, mark: str) -> dict[str, Any]:
        """Ask the store for a copy, under both conditions, and return its answer: `copy_id` and `copy_status`."""
        old_blob, new_blob = self._blob(old), self._blob(new)
        conditions = {"source_etag": source.etag, "source_match_condition": MatchConditions.IfNotModified}
        conditions |= {"match_condition": MatchConditions.IfMissing}
        answer = self._ask(new, lambda: new_blob.start_copy_from_url(old_blob.url, metadata={MARK: mark}, **conditions))
        return dict(answer)

    def _await_copy(self, new: str, copy_id: Any) -> Any:
        """Wait until the store has ended a copy, and return its status."""
        status: Any = "pending"
        while status == "pending":
            time.sleep(COPY_POLL_SECONDS)
            properties = self._ask(new, lambda: self._blob(new).get_blob_properties())
            if properties.copy.id != copy_id:
                raise OSError(f"{new} was removed while the store copied it, and another object has its name now")
            status = properties.copy.status
        return status

    def _remove_failed(self, uri: str) -> bool:
        """Remove what a failed copy of ours has left, and no other object; whether the name is free."""
        with suppress(FileNotFoundError, Unmet):
            properties = self._ask(uri, lambda: self._blob(uri).get_blob_properties())
            if properties.copy.status not in FAILED or MARK not in (properties.metadata or {}):
                return False
            conditions = {"etag": properties.etag, "match_condition": MatchConditions.IfNotModified}
            self._ask(uri, lambda: self._blob(uri).delete_blob(**conditions))
        return True

    def list_names(self, folder: str) -> Iterator[str]:
        prefix = f"{self._key(folder)}/"
        blobs = self._read_pages(
            folder, lambda: self._container.list_blobs(name_starts_with=prefix, include=["metadata"])
        )
        for blob in blobs:
            slash = "/" if (blob.metadata or {}).get(A_FOLDER) else ""
            yield blob.name.removeprefix(prefix) + slash

    def entries(self, folder: str, most: int | None = None) -> list[str]:
        prefix = f"{self._key(folder)}/"
        pages = self._container.walk_blobs(name_starts_with=prefix, delimiter="/", results_per_page=most)
        names: set[str] = set()
        for blob in islice(self._read_pages(folder, lambda: pages), most):
            names.add(blob.name.removeprefix(prefix).rstrip("/"))
        return sorted(names - {""})

    def unlink(self, uris: Sequence[str]) -> None:
        """Delete these objects, as far as they exist. What marks a folder goes after all that is in it."""
        objects = [uri for uri in uris if not uri.endswith("/")]
        markers = [uri for uri in uris if uri.endswith("/")]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self._delete, objects))
        for uri in sorted(markers, reverse=True):
            self._delete(uri.rstrip("/"))

    def _delete(self, uri: str) -> None:
        with suppress(FileNotFoundError):
            self._ask(uri, lambda: self._blob(uri).delete_blob())

    def _read_pages(self, folder: str, ask: Callable[[], Any]) -> Iterator[Any]:
        """Yield the blobs of a list. It is begun with the first one, and each page is one request."""
        pages = ask().by_page()
        while (page := self._ask(folder, lambda: next(pages, None))) is not None:
            yield from page

    def _blob(self, uri: str) -> Any:
        return self._container.get_blob_client(self._key(uri))

    def _key(self, uri: str) -> str:
        """Return the name in the container. Raises FileNotFoundError: it is in another one."""
        if not uri.startswith(f"{self.root}/"):
            raise FileNotFoundError(f"{uri} is not in {self.root}")
        return uri.removeprefix(f"{self.root}/")

    @property
    def _container(self) -> Any:
        variables = frozenset(item for item in os.environ.items() if item[0].startswith(("AZURE_", "AZURITE_")))
        return _client(os.getpid(), self._account, variables).get_container_client(self.name)

    def _ask(self, uri: str, request: Callable[[], T]) -> T:
        try:
            return request()
        except azure.ClientAuthenticationError as error:
            raise PermissionError(f"{uri}: {_code(error)}") from error
        except azure.HttpResponseError as error:
            raise _translate_error(error, uri) from error
        except azure.AzureError as error:
            raise ConnectionError(f"{self.root} does not answer ({type(error).__name__})") from error


@lru_cache(maxsize=4)
def _client(process: int, place: Place, environment: frozenset[tuple[str, str]]) -> BlobServiceClient:
    """Make a client for these variables. `process`: connections are not shared with a child."""
    variables = dict(environment)
    return BlobServiceClient(
        _address(place, variables),
        _credential(place, variables),
        connection_timeout=CONNECT_TIMEOUT_SECONDS,
        read_timeout=RESPONSE_TIMEOUT_SECONDS,
        retry_total=MAX_REQUEST_TRIES - 1,
    )


def _address(place: Place, variables: Mapping[str, str]) -> str:
    """Return the address of the store's server."""
    if is_emulated(variables):
        return f"{variables.get('AZURITE_BLOB_STORAGE_URL', 'http://127.0.0.1:10000')}/{place.account}"
    return variables.get("AZURE_STORAGE_ENDPOINT") or f"https://{place.host.replace('.dfs.', '.blob.', 1)}"


def _credential(place: Place, variables: Mapping[str, str]) -> Any:
    """Return the account's key, else a SAS token, else Azure's usual chain."""
    for name in KEYS:
        if key := variables.get(name):
            return AzureNamedKeyCredential(place.account, key)
    for name in TOKENS:
        if token := variables.get(name):
            return token
    return DefaultAzureCredential()


def _translate_error(error: azure.HttpResponseError, uri: str) -> OSError:
    """Return what the store has answered, as the error that a local file system would raise."""
    code, status = _code(error), error.status_code
    if code == UNMET:
        return Unmet(f"{uri}: {code}")
    if code in TAKEN:
        return FileExistsError(f"{uri}: {code}")
    if code in MISSING or status == 404:
        return FileNotFoundError(f"{uri}: {code}")
    if status in (401, 403):
        return PermissionError(f"{uri}: {code}")
    if status is None:
        return ConnectionError(f"{uri}: the answer broke off ({code})")
    return OSError(f"{uri}: {code} ({status})")


def _code(error: Any) -> str:
    """Return what the store calls an error; its own words may hold what was signed."""
    code = getattr(error, "error_code", None)
    code = getattr(code, "value", code)  # of an enum of the client
    if code:
        return str(code)
    name = type(error).__name__
    return f"{KEY} is not a key" if name == UNSIGNED else name
