"""`StreamSource`: the examples of a stream, chunk by chunk, read with a feature spec."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np
import orjson

from ctr.errors import DataError, SpecError
from ctr.features import BadRows, Batch, FeatureSpec, Transform, absence_warnings, batch_of_lines
from ctr.features.batches import take_rows
from ctr.features.spec import SERVED
from ctr.features.windows import ServedFeatures
from ctr.stream.example_stream import ExampleStream, StreamChunk

_MANY_BAD = 0.5
"""If a larger share of a chunk's rows is bad, the rows belong to another spec."""
_LOOKED_AT = 20
"""Rows of each chunk that show whether it has columns of the spec."""
_LANE_BITS, _CHUNK_BITS = 52, 20
"""Positions of bad rows consist of lane, chunk, and row of the chunk."""


@dataclass(frozen=True, slots=True)
class StreamExamples:
    """The examples of a chunk."""

    lane: int
    number: int
    batch: Batch
    """The good rows."""
    is_weighted: bool
    """See `StreamChunk`."""


class StreamSource:
    """Reads the lanes of a stream. For one thread at a time."""

    inputs: tuple[str, ...] = ()
    windows = None
    fraction_read = 0.0

    def __init__(
        self, stream: ExampleStream, spec: FeatureSpec, on_bad_rows: Literal["fail", "skip"]
    ) -> None:
        """Raises SpecError for a spec that does not suit rows of a stream."""
        if not spec.fields or spec.label_column is None:
            raise SpecError("rows of a stream have columns: the feature spec must name fields and a label.")
        self.spec, self.stream = spec, stream
        self.blocks_read = 0
        self.bad_rows = BadRows()
        self._on_bad_rows = on_bad_rows
        history, also = (ServedFeatures(spec), (SERVED,)) if spec.windows else (None, ())
        self._transform = Transform(spec, with_label=True, history=history, also=also)

    def read(self, positions: Mapping[int, int]) -> list[StreamExamples]:
        """The chunk of this number of each lane, if it exists, in the order in which they were appended.

        Raises DataError if chunks are gone, for a bad row unless bad rows are skipped, and for rows of
        another spec.
        """
        self.blocks_read += 1
        chunks = self.stream.read(positions)
        examples = []
        for lane, chunk in sorted(chunks.items(), key=lambda item: (item[1].number, item[0])):
            batch, problems = batch_of_lines(
                f"lane {lane}, chunk {chunk.number}", chunk.rows, self._transform
            )
            if problems:
                self._count_bad(lane, chunk, problems)
            self._require_columns(chunk)
            examples.append(StreamExamples(lane, chunk.number, batch, chunk.is_weighted))
        return examples

    def sample(self, rows: int) -> Batch:
        """The first `rows` examples; for an empty stream, one without features."""
        for chunk in self.stream.first()[:1]:
            batch, _ = batch_of_lines("the first chunk", chunk.rows, self._transform)
            if len(batch):
                return take_rows(batch, np.arange(min(rows, len(batch))))
        return Batch(np.array([0, 1]), np.zeros(1, np.uint32), labels=np.zeros(1, np.float32))

    def warnings(self) -> list[str]:
        """A warning for each column of the spec that has no value in the oldest chunks."""
        absent, names, rows = list(self.spec.columns), dict[str, None](), 0
        for chunk in self.stream.first():
            for line in chunk.rows.splitlines():
                with suppress(orjson.JSONDecodeError):
                    row = orjson.loads(line)
                    present = row.items() if isinstance(row, dict) else ()
                    names |= dict.fromkeys(name for name, value in present if value not in (None, ""))
            rows += chunk.count
            absent = [name for name in absent if name not in names]
            if not absent:
                break
        return absence_warnings(absent, list(names), rows)

    def _require_columns(self, chunk: StreamChunk) -> None:
        """Raise DataError if rows have columns, but none of the spec's: all features would be missing."""
        names = dict[str, None]()
        for line in chunk.rows.split(b"\n", _LOOKED_AT)[:_LOOKED_AT]:
            with suppress(orjson.JSONDecodeError):  # bad rows were counted
                row = orjson.loads(line)
                names |= dict.fromkeys(row if isinstance(row, dict) else ())
        others = [name for name in names if name not in (self.spec.label_column, self.spec.weight_column)]
        if others and not set(others).intersection(self.spec.columns):
            raise DataError(
                f"{self.stream.url.public}: rows have {', '.join(map(repr, others[:8]))}, and none of the "
                "spec's columns: do they belong to another model? Train with the spec of the model that "
                "served them."
            )

    def _count_bad(self, lane: int, chunk: StreamChunk, problems: Mapping[int, str]) -> None:
        reasons = list(problems.values())
        if len(problems) > _MANY_BAD * chunk.count:
            raise DataError(
                f"{self.stream.url.public}: {reasons[0]}. {len(problems):,} of {chunk.count:,} rows of this "
                "chunk are bad: do they belong to another model? Train with the spec of the model that "
                "served them."
            )
        if self._on_bad_rows == "fail":
            raise DataError(f"{self.stream.url.public}: {reasons[0]}; correct its source, or skip bad rows.")
        first = lane << _LANE_BITS
        rows = np.array(list(problems), np.int64) + (first + (chunk.number << _CHUNK_BITS))
        self.bad_rows.add(first, rows, reasons.__getitem__)
