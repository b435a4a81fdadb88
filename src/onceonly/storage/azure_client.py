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

from onceonly.storage.interface import MAX_PARALLEL_REQUESTS
from onceonly.storage.logins import AZURE_KEY, AZURE_TOKEN, snapshot_variables
from onceonly.storage.object_files import MARK_KEY, StoredObject, UnmetCondition
from onceonly.storage.paths import AzureFolder, is_azure_emulated
from onceonly.waits import wait_for

FOLDER_KEY = "hdi_isfolder"  # of the metadata of what marks a folder
KEY_VARIABLES = (AZURE_KEY, "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
TOKEN_VARIABLES = (AZURE_TOKEN, "AZURE_STORAGE_SAS_KEY")
TAKEN_CODES = ("BlobAlreadyExists", "TargetConditionNotMet", "UnauthorizedBlobOverwrite")
MISSING_CODES = ("BlobNotFound", "ContainerNotFound", "SourceConditionNotMet", "CannotVerifyCopySource")
CONNECT_TIMEOUT_SECONDS, RESPONSE_TIMEOUT_SECONDS = 10.0, 60.0
MAX_REQUEST_TRIES = 4  # until one is answered
FAILED_STATES = ("failed", "aborted")  # copies, of which an empty object stays
COPY_POLL_SECONDS = 0.2  # between two looks at a copy that the store makes later
UNMET_CODE = "ConditionNotMet"
SIGNING_ERROR = "AzureSigningError"  # the key is not in base64
T = TypeVar("T")


class Container:
    """The container of a folder. Nothing is asked before the first request."""

    server = "AZURE_STORAGE_ACCOUNT_NAME, or AZURE_STORAGE_ENDPOINT"

    def __init__(self, folder: AzureFolder) -> None:
        self.name, self.root, self._folder = folder.container, folder.root, folder

    @property
    def endpoint(self) -> str:
        return _address(self._folder, os.environ)

    def find(self, uri: str) -> StoredObject | None:
        """Return the object; None: there is none, or it marks a folder.

        Raises:
            OSError: the store is still copying it.
        """
        try:
            properties = self._ask(uri, lambda: self._blob(uri).get_blob_properties())
        except FileNotFoundError:
            return None
        metadata: Mapping[str, str] = properties.metadata or {}
        if metadata.get(FOLDER_KEY):
            return None
        if properties.copy.status == "pending":
            raise OSError(f"{uri} is still being copied")
        # What a failed copy has left has the mark, and not the content.
        mark = "" if properties.copy.status in FAILED_STATES else metadata.get(MARK_KEY, "")
        return StoredObject(int(properties.size), str(properties.etag), mark)

    def get(self, uri: str) -> bytes:
        return bytes(self._ask(uri, lambda: self._blob(uri).download_blob().readall()))

    def put(self, uri: str, content: bytes) -> None:
        self._ask(uri, lambda: self._blob(uri).upload_blob(content, overwrite=True))

    def copy(self, old: str, source: StoredObject, new: str, mark: str) -> None:
        """Copy an object, and wait for a copy that the store makes later.

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

    def _begin_copy(self, old: str, source: StoredObject, new: str, mark: str) -> dict[str, Any]:
        """Ask the store for a copy, under both conditions, and return its answer: `copy_id` and `copy_status`."""
        old_blob, new_blob = self._blob(old), self._blob(new)
        conditions = {"source_etag": source.etag, "source_match_condition": MatchConditions.IfNotModified}
        conditions |= {"match_condition": MatchConditions.IfMissing}
        metadata = {MARK_KEY: mark}
        answer = self._ask(new, lambda: new_blob.start_copy_from_url(old_blob.url, metadata=metadata, **conditions))
        return dict(answer)

    def _await_copy(self, new: str, copy_id: Any) -> Any:
        """Wait until the store has ended a copy, and return its status."""
        status: Any = "pending"
        with wait_for(f"the store, which copies to {new}"):
            while status == "pending":
                time.sleep(COPY_POLL_SECONDS)
                properties = self._ask(new, lambda: self._blob(new).get_blob_properties())
                if properties.copy.id != copy_id:
                    raise OSError(f"{new} was removed while the store copied it, and another object has its name now")
                status = properties.copy.status
        return status

    def _remove_failed(self, uri: str) -> bool:
        """Remove what a failed copy of ours has left, and no other object; whether the name is free."""
        with suppress(FileNotFoundError, UnmetCondition):
            properties = self._ask(uri, lambda: self._blob(uri).get_blob_properties())
            if properties.copy.status not in FAILED_STATES or MARK_KEY not in (properties.metadata or {}):
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
            slash = "/" if (blob.metadata or {}).get(FOLDER_KEY) else ""
            yield blob.name.removeprefix(prefix) + slash

    def list_entries(self, folder: str, most: int | None = None) -> list[str]:
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
        with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
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
        variables = snapshot_variables("AZURE_", "AZURITE_")
        return _client(os.getpid(), self._folder, variables).get_container_client(self.name)

    def _ask(self, uri: str, request: Callable[[], T]) -> T:
        try:
            with wait_for(self.root):
                return request()
        except azure.ClientAuthenticationError as error:
            raise PermissionError(f"{uri}: {_code(error)}") from error
        except azure.HttpResponseError as error:
            raise _translate_error(error, uri) from error
        except azure.AzureError as error:
            raise ConnectionError(f"{self.root} does not answer ({type(error).__name__})") from error


@lru_cache(maxsize=4)
def _client(process: int, folder: AzureFolder, environment: frozenset[tuple[str, str]]) -> BlobServiceClient:
    """Make a client for these variables. `process`: connections are not shared with a child."""
    variables = dict(environment)
    return BlobServiceClient(
        _address(folder, variables),
        _credential(folder, variables),
        connection_timeout=CONNECT_TIMEOUT_SECONDS,
        read_timeout=RESPONSE_TIMEOUT_SECONDS,
        retry_total=MAX_REQUEST_TRIES - 1,
    )


def _address(folder: AzureFolder, variables: Mapping[str, str]) -> str:
    """Return the address of the store's server."""
    if is_azure_emulated(variables):
        return f"{variables.get('AZURITE_BLOB_STORAGE_URL', 'http://127.0.0.1:10000')}/{folder.account}"
    return variables.get("AZURE_STORAGE_ENDPOINT") or f"https://{folder.host.replace('.dfs.', '.blob.', 1)}"


def _credential(folder: AzureFolder, variables: Mapping[str, str]) -> Any:
    """Return the account's key, else a SAS token, else Azure's usual chain."""
    for name in KEY_VARIABLES:
        if key := variables.get(name):
            return AzureNamedKeyCredential(folder.account, key)
    for name in TOKEN_VARIABLES:
        if token := variables.get(name):
            return token
    return DefaultAzureCredential()


def _translate_error(error: azure.HttpResponseError, uri: str) -> OSError:
    """Return what the store has answered, as the error that a local file system would raise."""
    code, status = _code(error), error.status_code
    if code == UNMET_CODE:
        return UnmetCondition(f"{uri}: {code}")
    if code in TAKEN_CODES:
        return FileExistsError(f"{uri}: {code}")
    if code in MISSING_CODES or status == 404:
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
    return f"{AZURE_KEY} is not a key" if name == SIGNING_ERROR else name
