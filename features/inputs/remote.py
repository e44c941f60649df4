"""`RemoteFile`: a file behind a URI, such as `s3://bucket/day1.csv`, read with `pyarrow.fs`."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from time import monotonic
from typing import Any

import pyarrow as pa

from ctr.errors import DataError
from ctr.features.inputs.input_file import FileState, InputFile, InputStream
from ctr.features.threads import Threads

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_GCS = ("gs://", "gcs://")
_AHEAD_BYTES = 8 << 20  # 8 MiB: a round trip is short beside the transfer
_BUFFER_BYTES = 1 << 20  # 1 MiB
_S = 1_000_000_000  # ns
_BELIEVED_S = 5
_CONNECT_S, _REQUEST_S, _ATTEMPTS = 10, 60, 5

_GCS_FIRST_S, _GCS_RETRY_S = 5, 60  # retries of listing and reading; the default is 15 minutes

_REFUSED = (
    "ACCESS_DENIED",
    "INVALID_ACCESS_KEY",
    "SIGNATURE_DOES_NOT_MATCH",
    "HTTP 403",
    "UNAUTH",
    "PERMISSION_DENIED",
    "denied",
)
_UNREACHED = (
    "NETWORK_CONNECTION",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "Could not connect",
    "resolve host",
    "timed out",
    "imeout",
)
_NO_TOKEN = "OAuth2 access token"
_GCS_CREDENTIALS = (
    "GOOGLE_APPLICATION_CREDENTIALS with the path of a key file, or `gcloud auth application-default login`;"
    " public data is read as gs://anonymous@bucket/key"
)
_S3_CREDENTIALS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE"
_HDFS_NEEDS = (
    "Hadoop's client has to be on this machine: Java (JAVA_HOME), libhdfs.so (HADOOP_HOME, or"
    " ARROW_LIBHDFS_DIR with its folder), and CLASSPATH as `hadoop classpath --glob` prints it"
)


def is_uri(text: str) -> bool:
    """Whether an input is a URI rather than a path."""
    return _URI.match(text) is not None


class RemoteFile(InputFile):
    """A file on another machine."""

    is_remote = True

    def __init__(self, uri: str, state: FileState) -> None:
        """`state`: from the listing."""
        super().__init__(uri)
        self.state = state

    def open(self) -> io.BufferedReader:
        return io.BufferedReader(_ReadAhead(self.location, self.seekable()), _BUFFER_BYTES)

    def seekable(self) -> Any:
        self.require_unchanged()
        filesystem, path = place_of(self.location)
        with remote_errors(self.location):
            return filesystem.open_input_file(path)

    def _state_now(self, opened: io.BufferedReader | None = None) -> FileState:
        filesystem, path = place_of(self.location)
        with remote_errors(self.location):
            (info,) = filesystem.get_file_info([path])
            return _state(info)


def _state(info: Any) -> FileState:
    """The state of a file from its `pyarrow.fs.FileInfo`, as far as that says.

    Times are in whole seconds: a server may report fractions in one response and none in another.
    """
    if not info.is_file:
        raise FileNotFoundError
    return FileState(0, 0, info.size, (info.mtime_ns or 0) // _S * _S)


def remote_file(uri: str) -> RemoteFile | None:
    """The file at `uri`, or None. Raises DataError.

    The answer is cached for up to `_BELIEVED_S` seconds, as a command asks several times.
    """
    return _remote_file(uri, int(monotonic() // _BELIEVED_S))


@lru_cache(maxsize=4096)
def _remote_file(uri: str, moment: int) -> RemoteFile | None:
    filesystem, path = place_of(uri, first=True)
    with remote_errors(uri):
        (info,) = filesystem.get_file_info([path])
    return RemoteFile(uri, _state(info)) if info.is_file else None


def list_remote(uri: str) -> list[RemoteFile]:
    """The file at `uri`, or every file below it if it is a folder. Raises DataError."""
    from pyarrow.fs import FileSelector, FileType

    filesystem, path = place_of(uri, first=True)
    with remote_errors(uri):
        (info,) = filesystem.get_file_info([path])
        if info.type == FileType.File:
            return [RemoteFile(uri, _state(info))]
        if info.type == FileType.NotFound:
            bucket = path.split("/", 1)[0]
            if filesystem.type_name in ("s3", "gcs") and bucket != path:
                # Raises an error that names the bucket if that is missing.
                filesystem.get_file_info(FileSelector(bucket, recursive=False))
            raise FileNotFoundError
        start = uri.removesuffix("/")
        path = info.path.rstrip("/")
        return [
            RemoteFile(start + each.path.removeprefix(path), _state(each))
            for each in filesystem.get_file_info(FileSelector(info.path, recursive=True))
            if each.type == FileType.File
        ]


@contextmanager
def remote_errors(uri: str, *, writing: bool = False) -> Iterator[None]:
    """Converts errors of `pyarrow.fs` to DataErrors that say what to do."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{uri}: there is no such file or folder; check bucket and path.") from error
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{uri}: {_reason(str(error), uri.startswith(_GCS), writing)}.") from error


def _reason(text: str, of_gcs: bool, writing: bool) -> str:
    """What went wrong and what to do, from the error message of a file system."""
    text = re.sub(r" \(Request ID: [^)]*\)| error_info=.*", "", text.splitlines()[0].rstrip("."))
    credentials, where = _S3_CREDENTIALS, "AWS_REGION and AWS_ENDPOINT_URL"
    if of_gcs:
        credentials, where = _GCS_CREDENTIALS, "CLOUD_STORAGE_EMULATOR_ENDPOINT if that is set"
    if _NO_TOKEN in text:
        return f"there are no credentials for Google Cloud Storage; give {credentials}"
    if "NO_SUCH_BUCKET" in text:
        return "there is no such bucket; check its name, AWS_REGION and AWS_ENDPOINT_URL"
    if any(word in text for word in _REFUSED):
        verb, rights = ("write", "put and delete") if writing else ("read", "get")
        return (
            f"no permission to {verb} it ({text}); check the credentials, such as {credentials}, and what"
            f" they allow: to list the bucket and {rights} objects"
        )
    if any(word in text for word in _UNREACHED):
        return f"the server cannot be reached ({text}); check the network, and {where}"
    return f"cannot be {'written' if writing else 'read'} ({text})"


def place_of(uri: str, *, first: bool = False) -> tuple[Any, str]:
    """A file system and the path in it. `first`: of a first access, which retries only for a short time."""
    from pyarrow.fs import FileSystem

    scheme, path = uri.split("://", 1)
    try:
        if scheme == "s3" and "?" not in path:
            return _s3(os.getpid()), path
        if uri.startswith(_GCS) and "?" not in path:
            bucket = path.removeprefix("anonymous@")
            return _gcs(os.getpid(), bucket != path, _GCS_FIRST_S if first else _GCS_RETRY_S), bucket
        filesystem, path = FileSystem.from_uri(uri)
    except (OSError, ValueError, pa.ArrowException) as error:
        remedy = (
            "URIs such as s3://bucket/key, gs://bucket/key, hdfs://host:port/path and file:///path are read"
        )
        if "libjvm" in str(error) or "libhdfs" in str(error):
            remedy = _HDFS_NEEDS
        raise DataError(
            f"{uri}: no file system can be opened for it ({str(error).splitlines()[0]}); {remedy}."
        ) from error
    return filesystem, path


@lru_cache(maxsize=1)
def _s3(process: int) -> Any:
    """S3 as the usual environment variables and files describe it; one object per process."""
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    return S3FileSystem(
        region=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        endpoint_override=os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"),
        connect_timeout=_CONNECT_S,
        request_timeout=_REQUEST_S,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
    )


@lru_cache(maxsize=4)
def _gcs(process: int, anonymous: bool, retry_s: int) -> Any:
    """Google Cloud Storage, with this machine's credentials or anonymous; one object per process."""
    from pyarrow.fs import GcsFileSystem

    return GcsFileSystem(anonymous=anonymous, retry_time_limit=timedelta(seconds=retry_s))


class _ReadAhead(InputStream):
    """A remote file; its next bytes are fetched while the current ones are used."""

    def __init__(self, uri: str, file: Any) -> None:
        self._uri, self._file = uri, file
        self._block = memoryview(b"")
        self._threads = Threads(1, "read-ahead")
        self._next: Future[bytes] = self._threads.submit(file.read, _AHEAD_BYTES)

    def _read(self, target: memoryview) -> int:
        if not self._block:
            with remote_errors(self._uri):
                self._block = memoryview(self._next.result())
            if self._block:
                self._next = self._threads.submit(self._file.read, _AHEAD_BYTES)
        count = min(len(target), len(self._block))
        target[:count], self._block = self._block[:count], self._block[count:]
        return count

    def close(self) -> None:
        if not self.closed:
            self._threads.close()
            self._file.close()
        super().close()
