"""Checkpoints of a training job in Redis: folders written by `ctr.checkpoint.writer`, verified when read.

manifest.json        the job, its position, and size and SHA-256 of the other files
partitions-NN.arrow  the partitions of a range that are not empty, a batch for each: its state and watermarks
reports.arrow        the reports of workers, by name
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import orjson
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ctr.checkpoint.ranges import over_ranges
from ctr.errors import ModelError, first_problem
from ctr.features.threads import Prefetch, Threads, cores
from ctr.ps import Dumps, PartitionDump, RedisStore

FORMAT = "ctr checkpoint"
FORMAT_VERSION = 6
_READABLE = (4, 5, FORMAT_VERSION)
MANIFEST = "manifest.json"

_ONE_RANGE = "partitions.arrow"
"""Before version 6, all partitions were in this file."""
REPORTS = "reports.arrow"
PARTITION_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int64(), nullable=False),
        pa.field("state", pa.large_binary(), nullable=False),
        pa.field("applied", pa.map_(pa.string(), pa.int64()), nullable=False),
    ]
)
REPORT_SCHEMA = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("report", pa.large_binary(), nullable=False),
    ]
)
_FROZEN = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)
_REMEDY = "restore the folder from a copy, or train from the beginning"


class StoreFacts(BaseModel):
    """The store that a checkpoint was made from."""

    model_config = _FROZEN

    bits: int
    z_bits: int
    n_bits: int = 8
    """Version 4 had no other value."""
    partitions: int
    incarnation: str = Field(alias="run")
    """The random id of the model's creation."""


class FileEntry(BaseModel):
    """One file of a checkpoint."""

    model_config = _FROZEN

    bytes: Annotated[int, Field(gt=0)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def range_files(count: int) -> list[str]:
    """The names of the files of so many ranges of partitions."""
    return [f"partitions-{i:02}.arrow" for i in range(count)]


def is_file(name: str) -> bool:
    """Whether a checkpoint may have a file of this name."""
    return (
        name in (MANIFEST, REPORTS, _ONE_RANGE) or re.fullmatch(r"partitions-\d{2}\.arrow", name) is not None
    )


class Manifest(BaseModel):
    """The content of `manifest.json`."""

    model_config = _FROZEN

    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    created: str
    """UTC, ISO 8601."""
    store: StoreFacts
    job: dict[str, Any]
    position: dict[str, Any]
    """The chunks that have certainly been trained; partitions may hold later pushes, with their tokens."""
    ranges: Annotated[int, Field(ge=1, le=100)] = 1
    """How many files the partitions are in, by ranges."""
    files: dict[str, FileEntry]
    """The files beside it, by name."""

    @model_validator(mode="after")
    def _has_all_files(self) -> Manifest:
        needed = [*(range_files(self.ranges) if self.format_version >= 6 else [_ONE_RANGE]), REPORTS]
        if sorted(self.files) != needed:
            raise ValueError(
                f"it names {', '.join(sorted(self.files)) or 'no files'}, not {', '.join(needed)}"
            )
        return self


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint with verified files. It keeps reading them when another checkpoint replaces the folder."""

    folder: Path
    manifest: Manifest
    reports: dict[str, bytes]
    _ranges: dict[str, pa.Buffer]
    """The content of files with partitions, by name."""

    def ranges(self) -> list[Iterator[PartitionDump]]:
        """The partitions that are not empty, one by one, of each range."""
        return [self._dumps(*each) for each in self._ranges.items()]

    def _dumps(self, name: str, content: pa.Buffer) -> Iterator[PartitionDump]:
        with _damage(self.folder / name):
            file = pa.ipc.open_file(content)
            for number in range(file.num_record_batches):
                partition, state, applied = (column[0] for column in file.get_batch(number))
                yield PartitionDump(partition.as_py(), memoryview(state.as_buffer()), dict(applied.as_py()))


def read_job(folder: Path) -> dict[str, Any]:
    """The job of the checkpoint in `folder`. Raises ModelError as `read_checkpoint` does."""
    return _read_manifest(folder).job


def read_position(folder: Path) -> dict[str, Any]:
    """The position of the checkpoint in `folder`. Raises ModelError as `read_checkpoint` does."""
    return _read_manifest(folder).position


def read_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`, whose files are verified by their SHA-256 (1.5 GB/s).

    Raises ModelError if it is missing, incomplete, changed, not a checkpoint, or of another format version.
    """
    manifest = _read_manifest(folder)
    files = manifest.files
    with Threads(cores(), "file") as threads:
        verified = threads.map(lambda name: _verified(folder / name, files[name]), files)
        contents = dict(zip(files, verified, strict=True))
    raw_reports = contents.pop(REPORTS)
    with _damage(folder / REPORTS):
        rows = pa.ipc.open_file(raw_reports).read_all().to_pylist()
        reports = {row["name"]: row["report"] for row in rows}
    return Checkpoint(folder, manifest, reports, contents)


def restore_checkpoint(checkpoint: Checkpoint, store: RedisStore) -> None:
    """Restore the state and the watermarks into a new model, on any number of nodes.

    Needs memory for three partitions of each range that is restored at the same time.

    Do not use the model before this returns, and drop it if this fails. Raises ModelError if the store's
    settings differ from the checkpoint's, and StoreError as `Dumps.restore` does.
    """
    for name, actual in (
        ("bits", store.bits),
        ("z_bits", store.z_bits),
        ("n_bits", store.n_bits),
        ("partitions", store.partitions.count),
    ):
        expected = getattr(checkpoint.manifest.store, name)
        if expected != actual:
            raise ModelError(
                f"{checkpoint.folder}: was made from a store with {name} {expected}, but {store.url} has "
                f"{name} {actual}; resume with the settings of the checkpoint's job."
            )

    empty = set(range(store.partitions.count))
    for restored in over_ranges(store.dumps, _restore_range, checkpoint.ranges()):
        empty -= restored
    for partition in sorted(empty):
        store.dumps.restore(PartitionDump(partition, b"", {}))


def _restore_range(dumps: Dumps, saved: Iterator[PartitionDump], stop: Event) -> set[int]:
    """Restore partitions; returns their numbers."""
    restored = set()
    with Prefetch(saved, depth=1) as ahead:  # 0.6 of the time without
        for dump in ahead:
            if stop.is_set():
                break
            dumps.restore(dump)
            restored.add(dump.partition)
    return restored


def _read_manifest(folder: Path) -> Manifest:
    if not folder.exists():
        raise ModelError(f"{folder}: there is no checkpoint{_aside(folder)}; start without resuming.")
    try:
        manifest = orjson.loads((folder / MANIFEST).read_bytes())
        kind, version = manifest["format"], manifest["format_version"]
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(
            f"{folder}: has no {MANIFEST}, so it is not a checkpoint; give another folder."
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder}: {MANIFEST} is torn or cannot be read ({error}); {_REMEDY}.") from error
    if kind != FORMAT:
        raise ModelError(f"{folder}: is a {kind}, not a checkpoint; give another folder.")
    if version not in _READABLE:
        raise ModelError(
            f"{folder}: the checkpoint has format version {version}, this program reads "
            f"{_READABLE[0]} to {FORMAT_VERSION}; use the version of ctr that wrote it."
        )
    try:
        return Manifest.model_validate(manifest)
    except ValidationError as error:
        raise ModelError(f"{folder}: {MANIFEST} is damaged ({first_problem(error)}); {_REMEDY}.") from error


def _aside(folder: Path) -> str:
    """The part of an error message that names the checkpoint if its writer was killed while replacing it.

    That can only happen on file systems without an atomic swap."""
    place = folder.resolve()
    name = re.compile(rf"\.{re.escape(place.name)}\.[0-9a-f]{{8}}\.replaced")
    replaced = [path.name for path in place.parent.glob(".*") if name.fullmatch(path.name)]
    return f", but {replaced[0]} beside it is one: rename that to {place.name}" if replaced else ""


def _verified(path: Path, entry: FileEntry) -> pa.Buffer:
    """A memory map of a file, after its size and checksum were verified."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != entry.bytes:
                raise ModelError(f"{path}: is torn ({size} bytes instead of {entry.bytes}); {_REMEDY}.")
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error}); {_REMEDY}.") from error
    if digest != entry.sha256:
        raise ModelError(
            f"{path}: is not the file that was written (SHA-256 {digest[:12]} instead of "
            f"{entry.sha256[:12]}); {_REMEDY}."
        )
    return pa.py_buffer(mapped)


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Convert Arrow's errors about a damaged file to ModelError."""
    try:
        yield
    except pa.ArrowException as error:
        raise ModelError(f"{path}: is not a file of a checkpoint ({error}); {_REMEDY}.") from error
