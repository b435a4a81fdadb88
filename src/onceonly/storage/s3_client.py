"""Requests to one bucket of an object store that speaks S3, with timeouts, and with the errors of a local file system.

Credentials come from the usual chain: environment, profile, machine. They are never stored, and no error shows them.

FileNotFoundError: no such object or bucket, or another object than the one to copy. EndedUpload: no such upload.
FileExistsError: the name is not free. PermissionError: it is not allowed, or there are no credentials.
UnsupportedOperation: the store knows no such request. Any other OSError: the effect is not known.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from io import UnsupportedOperation
from typing import Any

from botocore import exceptions as aws
from botocore import session
from botocore.config import Config

from onceonly.storage.interface import MAX_PARALLEL_REQUESTS
from onceonly.storage.logins import snapshot_variables
from onceonly.storage.object_files import MARK_KEY, StoredObject
from onceonly.waits import wait_for

CONNECT_TIMEOUT_SECONDS, RESPONSE_TIMEOUT_SECONDS = 10.0, 60.0
MAX_REQUEST_TRIES = 4  # until one is answered
MAX_KEYS = 1000  # that one request deletes, and uploads that one lists
ENDED_CODES = ("NoSuchUpload", "InvalidPart", "InvalidPartOrder")
MISSING_CODES = ("NoSuchKey", "NoSuchBucket")  # a 404 without them may be of a proxy whose server is down
MISSING_HEAD_CODES = ("404",)  # all that the answer to a HEAD tells
TAKEN_CODES = ("412", "409", "PreconditionFailed", "ConditionalRequestConflict")
CHANGED_CODES = ("412", "PreconditionFailed")
UNSUPPORTED_CODES = ("501", "NotImplemented")
DENIED_CODES = (
    "401",
    "403",
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
)
LOGIN_ERRORS = (
    aws.NoCredentialsError,
    aws.PartialCredentialsError,
    aws.CredentialRetrievalError,
    aws.ProfileNotFound,
    aws.TokenRetrievalError,
    aws.SSOError,
)


class EndedUpload(OSError):
    """The store does not know the upload, or not as it was: it expired, or another process completed or ended it."""


class Bucket:
    """The bucket that a URI names. Nothing is asked before the first request."""

    def __init__(self, name: str) -> None:
        self.name, self.root = name, f"s3://{name}"

    def key(self, uri: str) -> str:
        """Return the key of a URI. Raises FileNotFoundError: it is in another bucket."""
        if not uri.startswith(f"{self.root}/"):
            raise FileNotFoundError(f"{uri} is not in {self.root}")
        return uri.removeprefix(f"{self.root}/")

    @property
    def endpoint(self) -> str:
        return str(self._client.meta.endpoint_url)

    def ask(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """Send one request, repeated while the server is not there or is busy, and return its answer."""
        try:
            with wait_for(self.root):
                answer: Mapping[str, Any] = getattr(self._client, operation)(Bucket=self.name, **arguments)
            return answer
        except aws.ClientError as error:
            raise _translate_error(error, operation, arguments, self._uri_of(arguments)) from error
        except LOGIN_ERRORS as error:
            raise PermissionError(f"{self.root}: {error}") from error
        except aws.ParamValidationError as error:  # the name of the bucket, for example
            raise OSError(f"{self.root}: {' '.join(str(error).split())}") from error
        except aws.BotoCoreError as error:
            raise ConnectionError(f"{self.root} does not answer ({type(error).__name__})") from error

    def find(self, uri: str) -> StoredObject | None:
        try:
            answer = self.ask("head_object", Key=self.key(uri))
        except FileNotFoundError:
            return None
        mark = str(answer["Metadata"].get(MARK_KEY, ""))
        return StoredObject(int(answer["ContentLength"]), str(answer["ETag"]), mark)

    def get(self, uri: str) -> bytes:
        answer = self.ask("get_object", Key=self.key(uri))
        try:
            return bytes(answer["Body"].read())
        except (aws.BotoCoreError, OSError) as error:
            raise ConnectionError(f"{uri}: the response was cut off ({type(error).__name__})") from error

    def put(self, uri: str, content: bytes) -> None:
        self.ask("put_object", Key=self.key(uri), Body=content)

    def list_names(self, folder: str) -> Iterator[str]:
        """Yield the names of all objects below a folder, relative to it, in the order of their keys."""
        prefix = f"{self.key(folder)}/"
        for page in self._pages(Prefix=prefix):
            for content in page.get("Contents", ()):
                yield content["Key"].removeprefix(prefix)

    def list_entries(self, folder: str, most: int | None = None) -> list[str]:
        """Return the names in a folder: of objects and of folders."""
        prefix = f"{self.key(folder)}/"
        limit = {"MaxKeys": most} if most else {}
        names: list[str] = []
        for page in self._pages(Prefix=prefix, Delimiter="/", **limit):
            for content in page.get("Contents", ()):
                names.append(content["Key"].removeprefix(prefix))
            for subfolder in page.get("CommonPrefixes", ()):
                names.append(subfolder["Prefix"].removeprefix(prefix).rstrip("/"))
            if most:
                break
        return [name for name in names if name]

    def uploads(self, folder: str) -> Iterator[tuple[str, str]]:
        """Yield (name relative to the folder, id) of each upload below it that is not completed; some of them twice.

        Each page begins with the last name of the one before it: some servers refuse to continue within a name.
        """
        prefix = f"{self.key(folder)}/"
        more: dict[str, str] = {}
        while True:
            page = self.ask("list_multipart_uploads", Prefix=prefix, MaxUploads=MAX_KEYS, **more)
            uploads = [(str(upload["Key"]), str(upload["UploadId"])) for upload in page.get("Uploads", ())]
            for key, id in uploads:
                yield key.removeprefix(prefix), id
            if not page.get("IsTruncated"):
                return
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
            earlier_keys = [key for key, _ in uploads if key < uploads[-1][0]]
            if earlier_keys:
                more = {"KeyMarker": earlier_keys[-1]}

    def unlink(self, uris: Sequence[str]) -> None:
        """Delete these objects, as far as they exist."""
        if len(uris) == 1:
            self.ask("delete_object", Key=self.key(uris[0]))
            return
        for start in range(0, len(uris), MAX_KEYS):
            keys = [{"Key": self.key(uri)} for uri in uris[start : start + MAX_KEYS]]
            answer = self.ask("delete_objects", Delete={"Objects": keys, "Quiet": True})
            errors = answer.get("Errors")
            if errors:
                raise OSError(f"{self.root}/{errors[0].get('Key')} was not deleted: {errors[0].get('Code')}")

    def _pages(self, **arguments: Any) -> Iterator[Mapping[str, Any]]:
        """Yield each page of a list. The next one begins where the last one ended."""
        more: dict[str, Any] = {}
        while True:
            page = self.ask("list_objects_v2", **arguments, **more)
            yield page
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def _uri_of(self, arguments: Mapping[str, Any]) -> str:
        """Return the URI of the object or folder that a request is about, for errors."""
        return f"{self.root}/{arguments.get('Key', arguments.get('Prefix', ''))}"

    @property
    def _client(self) -> Any:
        """The client, made once for all buckets, because that takes a third of a second."""
        variables = snapshot_variables("AWS_")
        try:
            return _client(os.getpid(), variables)
        except LOGIN_ERRORS as error:
            raise PermissionError(f"{self.root}: {error}") from error
        except (aws.BotoCoreError, ValueError) as error:
            raise OSError(f"{self.root}: {type(error).__name__}: {error}") from error


@lru_cache(maxsize=1)
def _client(process: int, environment: frozenset[tuple[str, str]]) -> Any:
    """Make a client for these variables. `process`: connections are not shared with a child."""
    variables = dict(environment)
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        read_timeout=RESPONSE_TIMEOUT_SECONDS,
        retries={"mode": "standard", "total_max_attempts": MAX_REQUEST_TRIES},
        max_pool_connections=2 * MAX_PARALLEL_REQUESTS,
        request_checksum_calculation="when_required",  # other servers do not know the newer checksums
        response_checksum_validation="when_required",
    )
    region = variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION")
    return session.get_session().create_client("s3", region_name=region, config=config)


def _translate_error(error: Any, operation: str, arguments: Mapping[str, Any], uri: str) -> OSError:
    """Return what the server has answered, as the error that a local file system would raise."""
    code = str(error.response.get("Error", {}).get("Code"))
    status = str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
    for codes, kind in _error_kinds(operation, arguments):
        if code in codes or status in codes:
            return kind(f"{operation} of {uri}: {code} ({status})")
    return OSError(f"{operation} of {uri}: {code} ({status})")


def _error_kinds(operation: str, arguments: Mapping[str, Any]) -> list[tuple[tuple[str, ...], type[OSError]]]:
    """Return the codes and statuses with a meaning of their own, and the error for each. The first match counts.

    What some of them mean depends on the condition that the request had.
    """
    kinds: list[tuple[tuple[str, ...], type[OSError]]] = []
    kinds += [(ENDED_CODES, EndedUpload), (MISSING_CODES, FileNotFoundError)]
    if operation == "head_object":
        kinds.append((MISSING_HEAD_CODES, FileNotFoundError))
    if "IfNoneMatch" in arguments:
        kinds.append((TAKEN_CODES, FileExistsError))
    if "CopySourceIfMatch" in arguments:
        kinds.append((CHANGED_CODES, FileNotFoundError))
    return [*kinds, (DENIED_CODES, PermissionError), (UNSUPPORTED_CODES, UnsupportedOperation)]
