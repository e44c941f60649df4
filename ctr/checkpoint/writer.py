"""Writes checkpoints: the store is read while training is paused; everything else happens afterwards."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from ctr.checkpoint.checkpoint import (
    FORMAT,
    MANIFEST,
    PARTITION_SCHEMA,
    REPORT_SCHEMA,
    REPORTS,
    Manifest,
    StoreFacts,
    is_file,
    range_files,
)
from ctr.checkpoint.ranges import over_ranges, ranges_of
from ctr.errors import ModelError
from ctr.features import replace_folder, require_replaceable, scratch_folder, sha256_of
from ctr.features.threads import Prefetch, Threads, cores
from ctr.outputs import require_writable
from ctr.ps import Dumps, PartitionDump, RedisStore

_LEAST_LZ4 = -64
"""The level of LZ4; below 0, it looks at fewer bytes the lower the level."""


@contextmanager
def draft_checkpoint(
    folder: Path,
    store: RedisStore,
    *,
    job: Mapping[str, Any],
    position: Mapping[str, Any],
    reports: Mapping[str, bytes],
    pushed: Mapping[str, int] | None = None,
    confirm: Callable[[], object] = lambda: None,
) -> Iterator[Callable[[], None]]:
    """Read the store into a draft of the checkpoint `folder`; `commit` it once training continues:

        ...  # pause training, and note the position
        with draft_checkpoint(folder, store, job=job, position=position, reports=reports) as commit:
            ...  # let training continue
            commit()

    `position` says which chunks were trained, and must be determined BEFORE this call. A push in between is
    then in the partitions but not in the position: its chunk is trained again after resuming, and its token
    keeps it from counting twice. In the other order, the push would be lost. `reports` should cover the
    chunks of the position. `job` and `position` are JSON objects, and copied at once. `pushed` are watermarks
    that every partition must have: of data that is not being trained, so that others mean lost pushes, or
    that a failover has ended the pause.

    `commit`, in any thread, writes the draft to disk, calls `confirm`, and replaces the checkpoint. An
    earlier one stays until then, and if `confirm` raises. A draft that is not committed is removed at the end
    of the block.

    Needs memory for three partitions of each range that is read at the same time (`ranges_of`). Drafts of
    writers that were killed are removed. Raises StoreError as `Dumps.take` does, what
    `require_checkpoint_or_nothing` raises, and ModelError if the store has lost pushes. Both this and
    `commit` raise ModelError if the disk refuses. An earlier checkpoint is then unchanged.
    """
    require_checkpoint_or_nothing(folder)
    place = folder.resolve()
    entries = orjson.loads(orjson.dumps({"job": dict(job), "position": dict(position)}))
    facts = StoreFacts(
        bits=store.bits,
        z_bits=store.z_bits,
        n_bits=store.n_bits,
        partitions=store.partitions.count,
        run=store.incarnation,
    )
    created = datetime.now(UTC).isoformat(timespec="seconds")
    draft = ExitStack()  # closing it replaces the checkpoint by the draft, an exception removes the draft
    try:
        with _refusals(folder):
            path = draft.enter_context(replace_folder(place, confirm))
            write = partial(_write_range, folder, path, pushed or {})
            ranges = ranges_of(store)
            parts = dict(zip(range_files(len(ranges)), ranges, strict=True))
            over_ranges(store.dumps, write, list(parts.items()))
            with _arrow_file(path / REPORTS, REPORT_SCHEMA) as file:
                rows = [{"name": name, "report": report} for name, report in reports.items()]
                file.write_batch(pa.RecordBatch.from_pylist(rows, REPORT_SCHEMA))

        def commit() -> None:
            with _refusals(folder), draft:
                # Hashed here, not while writing, which would pause training for twice as long.
                files = _file_entries(path, [*parts, REPORTS])
                manifest = Manifest.model_validate(
                    {"created": created, "store": facts, **entries, "ranges": len(ranges), "files": files}
                )
                text = orjson.dumps(manifest.model_dump(by_alias=True), option=orjson.OPT_INDENT_2)
                (path / MANIFEST).write_bytes(text)

        yield commit
    finally:
        draft.__exit__(GeneratorExit, GeneratorExit(), None)


def _write_range(
    folder: Path, draft: Path, pushed: Mapping[str, int], dumps: Dumps, part: tuple[str, range], stop: Event
) -> None:
    """Write the file of this name with a range of partitions; raises as `draft_checkpoint` does."""
    name, partitions = part
    taken = map(dumps.take, takewhile(lambda _: not stop.is_set(), partitions))
    with _arrow_file(draft / name, PARTITION_SCHEMA) as file, Prefetch(taken, depth=1) as ahead:
        for dump in ahead:
            _require_exactly(folder, dump, pushed)
            if dump.state or dump.applied:
                file.write_batch(_batch(dump))


@contextmanager
def sole_writer(folder: Path) -> Iterator[bool]:
    """Yield True if no other live process is in such a block for `folder`.

    It locks a hidden file beside the folder, which it removes at the end. If the file system has no locks, it
    always yields True. Raises ModelError if the disk refuses.
    """
    place = folder.resolve()
    path = place.with_name(f".{place.name}.lock")
    with _refusals(folder):
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(path)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            path.unlink(missing_ok=True)
            os.close(lock)


def _locked(path: Path) -> int | None:
    """A handle that holds the lock of a file, created if missing; None if another process holds the lock."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:  # a file system without locks
            return handle
        with suppress(FileNotFoundError):  # the last holder may have just removed it
            if os.path.samestat(os.stat(path), os.stat(handle)):
                return handle
        os.close(handle)


def _require_exactly(folder: Path, dump: PartitionDump, pushed: Mapping[str, int]) -> None:
    """Raises ModelError if a partition lacks one of these pushes, or has got later ones."""
    if any(dump.applied.get(name, -1) != last for name, last in pushed.items()):
        raise ModelError(
            f"{folder}: the store has just lost pushes, which may be resent, or got some while it was read; "
            "the earlier checkpoint stays."
        )


def require_checkpoint_or_nothing(folder: Path) -> None:
    """Check that a checkpoint can be written to `folder`; called before training, too.

    Raises ModelError if that would delete anything but a checkpoint, and DataError if the parent folder is
    not writable.
    """
    require_replaceable(folder, "checkpoint", FORMAT, is_file, ModelError)
    require_writable(folder.resolve())


def remove_checkpoint(folder: Path) -> None:
    """Remove the checkpoint, if there is one, as a whole. Raises ModelError if the disk refuses."""
    place = folder.resolve()
    try:
        # Of this name, so that the next checkpoint removes what a killed process leaves.
        with (
            scratch_folder(place.parent, f".{place.name}.", ".partial") as aside,
            suppress(FileNotFoundError),
        ):
            os.rename(place, aside / place.name)
    except OSError as error:
        raise ModelError(f"{folder}: the checkpoint could not be removed ({error}); remove it.") from error


@contextmanager
def _refusals(folder: Path) -> Iterator[None]:
    """Convert errors of the disk to ModelError."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        outcome = "the earlier one is unchanged" if folder.exists() else "nothing was left behind"
        raise ModelError(f"{folder}: the checkpoint could not be written ({error}); {outcome}.") from error


@contextmanager
def _arrow_file(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatchFileWriter]:
    # Most slots of a large store are zeros, which LZ4 leaves out in 0.2 s per GB. At its default level, 1 GB
    # without zeros takes 3 s, at this one 0.5 s, and comes out as long as it was (instead of 0.8 of that).
    lz4 = pa.Codec("lz4", compression_level=_LEAST_LZ4)
    options = pa.ipc.IpcWriteOptions(compression=lz4, use_threads=False)
    # A path in bytes, as Arrow only takes a str that is UTF-8. A Python file would take a fifth longer.
    with (
        pa.OSFile(os.fsencode(path), "wb") as sink,
        pa.ipc.new_file(sink, schema, options=options) as file,
    ):
        yield file


def _batch(dump: PartitionDump) -> pa.RecordBatch:
    """A batch of one row, without a copy of the state."""
    ends = pa.py_buffer(np.array([0, len(dump.state)], np.int64))
    columns = [
        pa.array([dump.partition], pa.int64()),
        pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, pa.py_buffer(dump.state)]),
        pa.array([list(dump.applied.items())], PARTITION_SCHEMA.field("applied").type),
    ]
    return pa.record_batch(columns, schema=PARTITION_SCHEMA)


def _file_entries(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """What the manifest says of these files."""

    def entry(name: str) -> dict[str, Any]:
        path = folder / name
        return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}

    with Threads(cores(), "file") as threads:
        return dict(zip(names, threads.map(entry, names), strict=True))
