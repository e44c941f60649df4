"""Arrow IPC bodies: a table of rows in, a table of predictions out."""

from __future__ import annotations

import struct

import pyarrow as pa

from ctr.api.requests.body import Limits, RequestError, too_many

_FILE, _FILE_HEAD_BYTES = b"ARROW1", 8  # of a file, which is a stream behind them
# Numbers of fields and tables in the flatbuffers of Arrow's Message.fbs.
_HEADER_TYPE, _HEADER, _COMPRESSION, _DATA = 1, 2, 3, 1
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3


def read_table(body: bytes, limits: Limits) -> pa.Table:
    """The rows of an Arrow IPC stream or file.

    Raises `RequestError`: 413 for more rows than `limits.rows`, 422 for anything else than one such stream or
    file, and for one that Arrow has compressed, as its size would be known only after it fills the memory.
    """
    source = pa.py_buffer(body)
    is_file = body.startswith(_FILE)
    if is_file:
        source = source.slice(_FILE_HEAD_BYTES)
    batches: list[pa.RecordBatch] = []
    rows = 0
    try:
        for message in pa.ipc.MessageReader.open_stream(source):
            if _is_compressed(message.metadata.to_pybytes()):
                raise RequestError(
                    422,
                    "the Arrow data is compressed by Arrow itself; write it without compression, or use gzip",
                )
        reader = pa.BufferReader(source)
        with pa.ipc.open_stream(reader) as stream:
            _ = stream.schema.names  # decodes the names, and raises ValueError if they are not UTF-8
            for batch in stream:
                rows += batch.num_rows
                if rows > limits.rows:
                    raise too_many(rows, limits)
                batch.validate(full=True)
                batches.append(batch)
            if not is_file and (more := source.size - reader.tell()):  # perhaps another stream of rows
                raise RequestError(
                    422, f"{more:,} bytes follow the Arrow stream; send one stream per request"
                )
            return pa.Table.from_batches(batches, stream.schema)
    except (pa.ArrowException, OSError, EOFError, ValueError, struct.error) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RequestError(
            422, f"the body is not an Arrow stream or file ({reason:.200}); send one as pyarrow.ipc writes it"
        ) from None


def write_table(table: pa.Table) -> bytes:
    """The table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _is_compressed(message: bytes) -> bool:
    """Whether the metadata says that a message's buffers are compressed. Raises `struct.error` if damaged."""
    (root,) = struct.unpack_from("<i", message)
    kind, header = _field(message, root, _HEADER_TYPE), _field(message, root, _HEADER)
    if kind is None or header is None or message[kind] not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return False
    batch = _table(message, header)
    if message[kind] == _DICTIONARY_BATCH:
        data = _field(message, batch, _DATA)
        if data is None:
            return False
        batch = _table(message, data)
    return _field(message, batch, _COMPRESSION) is not None


def _table(message: bytes, at: int) -> int:
    """The position of the table that the field at `at` refers to."""
    return at + int(struct.unpack_from("<I", message, at)[0])


def _field(message: bytes, table: int, number: int) -> int | None:
    """The position of a field of a flatbuffers table; None if the table lacks it."""
    (to_vtable,) = struct.unpack_from("<i", message, table)
    vtable = table - to_vtable
    (size,) = struct.unpack_from("<H", message, vtable)
    place = 4 + 2 * number
    if place + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", message, vtable + place)
    return table + offset if offset else None
