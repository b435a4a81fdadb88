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

from onceonly.filesystems.azure_names import KEY, TOKEN, Place, emulated
from onceonly.filesystems.copies import Unmet
from onceonly.filesystems.interface import AT_ONCE
from onceonly.filesystems.object_files import MARK, Found

A_FOLDER = "hdi_isfolder"  # in the metadata of what marks a folder
KEYS = (KEY, "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
TOKENS = (TOKEN, "AZURE_STORAGE_SAS_KEY")
TAKEN = ("BlobAlreadyExists", "TargetConditionNotMet", "UnauthorizedBlobOverwrite")
MISSING = ("BlobNotFound", "ContainerNotFound", "SourceConditionNotMet", "CannotVerifyCopySource")
CONNECT, RESPONSE, TRIES = 10.0, 60.0, 4  # seconds; requests until one is answered
FAILED = ("failed", "aborted")  # copies, of which an empty object stays
LOOK = 0.2  # seconds between two looks at a copy that the store makes later
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
        """Raises OSError: the store is still copying it."""
        try:
            told = self._ask(uri, lambda: self._blob(uri).get_blob_properties())
        except FileNotFoundError:
            return None
        known: Mapping[str, str] = told.metadata or {}
        if known.get(A_FOLDER):
            return None
        if told.copy.status == "pending":
            raise OSError(f"{uri} is still being copied")
        return Found(int(told.size), str(told.etag), "" if told.copy.status in FAILED else known.get(MARK, ""))

    def get(self, uri: str) -> bytes:
        return bytes(self._ask(uri, lambda: self._blob(uri).download_blob().readall()))

    def put(self, uri: str, content: bytes) -> None:
        self._ask(uri, lambda: self._blob(uri).upload_blob(content, overwrite=True))

    def copy(self, old: str, found: Found, new: str, mark: str) -> None:
        """See `copies.CopyingStore`. A copy that the store makes later is waited for.

        The name is taken as soon as it has begun. What a copy that failed leaves there is removed, now or by the next.
        """
        try:
            told = self._begin(old, found, new, mark)
        except FileExistsError:
            if not self._remove_failed(new):
                raise
            told = self._begin(old, found, new, mark)
        while told["copy_status"] == "pending":
            time.sleep(LOOK)
            now = self._ask(new, lambda: self._blob(new).get_blob_properties())
            if now.copy.id != told["copy_id"]:
                raise OSError(f"{new} was removed while the store copied it, and another object has its name now")
            told["copy_status"] = now.copy.status
        if told["copy_status"] != "success":
            self._remove_failed(new)
            raise OSError(f"{new}: the store did not copy it ({told['copy_status']})")

    def _begin(self, old: str, found: Found, new: str, mark: str) -> dict[str, Any]:
        source, made = self._blob(old), self._blob(new)
        conditions = {"source_etag": found.etag, "source_match_condition": MatchConditions.IfNotModified}
        conditions |= {"match_condition": MatchConditions.IfMissing}
        told = self._ask(new, lambda: made.start_copy_from_url(source.url, metadata={MARK: mark}, **conditions))
        return dict(told)

    def _remove_failed(self, uri: str) -> bool:
        """Remove what a failed copy of ours has left, and no other object; whether the name is free."""
        with suppress(FileNotFoundError, Unmet):
            told = self._ask(uri, lambda: self._blob(uri).get_blob_properties())
            if told.copy.status not in FAILED or MARK not in (told.metadata or {}):
                return False
            this = {"etag": told.etag, "match_condition": MatchConditions.IfNotModified}
            self._ask(uri, lambda: self._blob(uri).delete_blob(**this))
        return True

    def below(self, folder: str) -> Iterator[str]:
        prefix = f"{self._key(folder)}/"
        found = self._listed(folder, lambda: self._container.list_blobs(name_starts_with=prefix, include=["metadata"]))
        for each in found:
            mark = "/" if (each.metadata or {}).get(A_FOLDER) else ""
            yield each.name.removeprefix(prefix) + mark

    def entries(self, folder: str, most: int | None = None) -> list[str]:
        prefix = f"{self._key(folder)}/"
        pages = self._container.walk_blobs(name_starts_with=prefix, delimiter="/", results_per_page=most)
        found = islice(self._listed(folder, lambda: pages), most)
        names = (each.name.removeprefix(prefix).rstrip("/") for each in found)
        return sorted({name for name in names if name})

    def unlink(self, uris: Sequence[str]) -> None:
        """What marks a folder goes after all that is in it."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self._delete, (uri for uri in uris if not uri.endswith("/"))))
        for uri in sorted((uri for uri in uris if uri.endswith("/")), reverse=True):
            self._delete(uri.rstrip("/"))

    def _delete(self, uri: str) -> None:
        with suppress(FileNotFoundError):
            self._ask(uri, lambda: self._blob(uri).delete_blob())

    def _listed(self, folder: str, ask: Callable[[], Any]) -> Iterator[Any]:
        pages = ask().by_page()
        while (page := self._ask(folder, lambda: next(pages, None))) is not None:
            yield from page

    def _blob(self, uri: str) -> Any:
        return self._container.get_blob_client(self._key(uri))

    def _key(self, uri: str) -> str:
        """Raises FileNotFoundError: it is in another container."""
        if not uri.startswith(f"{self.root}/"):
            raise FileNotFoundError(f"{uri} is not in {self.root}")
        return uri.removeprefix(f"{self.root}/")

    @property
    def _container(self) -> Any:
        known = {name: value for name, value in os.environ.items() if name.startswith(("AZURE_", "AZURITE_"))}
        return _client(os.getpid(), self._account, frozenset(known.items())).get_container_client(self.name)

    def _ask(self, uri: str, request: Callable[[], T]) -> T:
        try:
            return request()
        except azure.ClientAuthenticationError as error:
            raise PermissionError(f"{uri}: {_code(error)}") from error
        except azure.HttpResponseError as error:
            raise self._told(error, uri) from error
        except azure.AzureError as error:
            raise ConnectionError(f"{self.root} does not answer ({type(error).__name__})") from error

    def _told(self, error: azure.HttpResponseError, uri: str) -> OSError:
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


@lru_cache(maxsize=4)
def _client(process: int, place: Place, environment: frozenset[tuple[str, str]]) -> BlobServiceClient:
    """`process`: connections are not shared with a child."""
    known = dict(environment)
    return BlobServiceClient(
        _address(place, known),
        _credential(place, known),
        connection_timeout=CONNECT,
        read_timeout=RESPONSE,
        retry_total=TRIES - 1,
    )


def _address(place: Place, known: Mapping[str, str]) -> str:
    if emulated(known):
        return f"{known.get('AZURITE_BLOB_STORAGE_URL', 'http://127.0.0.1:10000')}/{place.account}"
    return known.get("AZURE_STORAGE_ENDPOINT") or f"https://{place.host.replace('.dfs.', '.blob.', 1)}"


def _credential(place: Place, known: Mapping[str, str]) -> Any:
    if key := next(filter(None, map(known.get, KEYS)), None):
        return AzureNamedKeyCredential(place.account, key)
    return next(filter(None, map(known.get, TOKENS)), None) or DefaultAzureCredential()


def _code(error: Any) -> str:
    """What the store calls it; its own words may hold what was signed."""
    code = getattr(error, "error_code", None)
    name = type(error).__name__
    return str(getattr(code, "value", code) or (f"{KEY} is not a key" if name == UNSIGNED else name))
