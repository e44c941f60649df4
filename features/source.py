"""`RawSource`: the examples of raw files, through a feature spec."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from features.batches import Batch, BatchBuilder
from features.preview import crowded_fields, kind_of_labels
from features.readers import (
    EARLY_ROWS,
    BadRows,
    Block,
    Labels,
    Quarantine,
    open_reader,
    require_few,
)
from features.spec import FeatureSpec
from features.text import Cells
from features.transform import Transform

OnBadRows = Literal["fail", "skip", "quarantine"]


class RawSource:
    """Reads raw files, one after the other, through a spec.

    A row's position, in which `start`, `stop`, `count_rows` and `BadRows` count, is its place
    among all data rows of all files, good or bad. So a part of the data is the same whatever is done with
    bad rows.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        paths: Sequence[str | Path],
        *,
        on_bad_rows: OnBadRows = "fail",
        quarantine: Path | None = None,
        max_bad_fraction: float | None = None,
        labels: Labels = "required",
    ) -> None:
        """Opens each file once, so that a missing one or a wrong header shows before any work.

        `on_bad_rows`: `fail` raises DataError at the first, `skip` leaves them out, `quarantine` also
        writes them, as they stand, to the file `quarantine`; that replaces an older one when the first pass
        with a bad row ends, however it ends. `max_bad_fraction`: a pass in which more of the rows are bad
        (see `too_many`) ends with a DataError that counts them by reason, at its end at the latest; None: all
        may be. `labels`: if ignored, files may lack labels (and weights), those that are there are not looked
        at, and the batches have none; `absent`: likewise, and files without a header do lack the label's
        column. Raises DataError, or SpecError when the spec does not fit a file's format.
        """
        if (on_bad_rows == "quarantine") != (quarantine is not None):
            raise ValueError("a quarantine file is given if and only if on_bad_rows is 'quarantine'")
        if not paths:
            raise DataError("There are no input files; give at least one.")
        self.spec = spec
        self._paths = [Path(path) for path in paths]
        self._on_bad_rows = on_bad_rows
        self.max_bad_fraction = max_bad_fraction
        self._tried = 0  # rows of the pass
        self._reasons: Counter[str] = Counter()  # of its bad rows
        self._quarantine = None if quarantine is None else Quarantine(quarantine)
        self._labels = labels
        self._transform = Transform(spec, with_label=labels == "required")
        self._check()
        self._row_count: int | None = None
        self.fraction_read = 0.0  # by rows if the pass has a `stop`, else by bytes of file
        self.blocks_read = 0
        self.bad_rows = BadRows()
        self._kept: _Blocks | None = None
        self._no_click = np.ones(1, np.int8)  # see `BatchBuilder.no_click`
        self._decided = False

    def batches(self, rows: int, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """The good rows at the positions `start..stop-1`, exactly `rows` in each batch but the last.

        One pass at a time: `fraction_read` is of the one begun last. Labels must be 0 or 1 in all rows,
        or -1 or 1 in all; which of the two, the majority of the first sound rows decides for all passes.
        """
        if rows < 1 or start < 0:
            raise ValueError(f"rows is {rows} and start {start}: at least 1 and 0")
        self._decide_labels()
        self.fraction_read = 0.0
        self._tried, self._reasons = 0, Counter()
        try:
            # No name for the builder here: it would keep its memory for longer than the rows last.
            yield from self._fill(
                BatchBuilder(self._transform, rows, self._no_click),
                self._blocks_from(start),
                start,
                stop,
                partial(self._note, start),
            )
            self._require_few()
        finally:
            if self._quarantine is not None:
                self._quarantine.put_in_place()
        self.fraction_read = 1.0

    def sample(self, rows: int) -> Batch:
        """The first `rows` good examples, or all when there are fewer; no trace is left of bad rows."""
        self._decide_labels()
        builder = BatchBuilder(self._transform, rows, self._no_click)
        return next(self._fill(builder, _Blocks(self._blocks()), 0, None, None), builder.take())

    def warnings(self) -> list[str]:
        """What the first rows show that a user should know, such as a field that says nothing."""
        with closing(self._blocks()) as blocks:
            return crowded_fields(self._transform, (block for _, block, _ in blocks))

    def count_rows(self) -> int:
        """The number of data rows, good or bad. Text is read through for it, once."""
        if self._row_count is None:
            self._row_count = 0
            for path in self._paths:
                with closing(open_reader(path, self.spec, self._labels)) as reader:
                    self._row_count += reader.count_rows()
        return self._row_count

    def _fill(
        self,
        builder: BatchBuilder,
        blocks: _Blocks,
        start: int,
        stop: int | None,
        note: Callable[[Block, int, int, int], None] | None,
    ) -> Iterator[Batch]:
        """As `batches`; calls `note(block, first, last, position of the block)` for rows that were tried."""
        for position, block, done in blocks:
            size = block.status.size
            row = min(max(start - position, 0), size)
            last = size if stop is None else min(max(stop - position, 0), size)
            while row < last:
                first, row = row, self._transform.append(*_rows(block, last), builder, row)
                if note is not None:
                    note(block, first, row, position)
                self.fraction_read = done if stop is None else (position + row - start) / (stop - start)
                if builder.room == 0:
                    yield builder.take()
            if stop is not None and position + size >= stop:
                self._kept = blocks
                break
        if builder.rows:
            yield builder.take()

    def _blocks_from(self, start: int) -> _Blocks:
        """All blocks from at least the one with this row on.

        Parts of the data that are read one after the other are found without reading what is before them
        again: the next part goes on in the block in which the last one stopped.
        """
        kept, self._kept = self._kept, None
        if kept is not None:
            if kept.put_back() <= start:
                return kept
            kept.close()
        return _Blocks(self._blocks())

    def _blocks(self) -> Generator[_Placed, None, None]:
        """All blocks, each with the position of its first row and how much of the input has been read."""
        sizes = [path.stat().st_size for path in self._paths]
        position = 0
        for i, path in enumerate(self._paths):
            with closing(open_reader(path, self.spec, self._labels)) as reader:
                for block in reader.blocks(self._transform.columns):
                    self.blocks_read += 1
                    yield position, block, (sum(sizes[:i]) + sizes[i] * reader.fraction) / sum(sizes)
                    position += block.status.size

    def _note(self, start: int, block: Block, first: int, last: int, position: int) -> None:
        """Deals with the bad ones of the rows `first..last-1` of a block, in a pass that began at `start`."""
        self._tried += last - first
        if not block.status[first:last].any():
            return
        bad: NDArray[np.int64] = first + np.flatnonzero(block.status[first:last])
        if self._on_bad_rows == "fail":
            raise DataError(
                f"{self._describe(block, int(bad[0]))}; fix the row or use --on-bad-rows skip or quarantine."
            )
        new = self.bad_rows.add(start, position + bad, lambda i: self._describe(block, int(bad[i])))
        if self._quarantine is not None and new.size:
            self._quarantine.keep(block.origin.raw(int(row)) for row in bad[new])
        self._reasons.update(self._explain(block, int(row))[1] for row in bad)
        if self._tried >= EARLY_ROWS:
            self._require_few()

    def _explain(self, block: Block, row: int) -> tuple[str, str]:
        """What is wrong with a bad row, with and without what was found there."""
        status, column = int(block.status[row]), int(block.column[row])
        misread = block.origin.misread(status, column)
        return misread or self._transform.explain(block.cells, row, status, column)

    def _describe(self, block: Block, row: int) -> str:
        return f"{block.origin.place(row)}: {self._explain(block, row)[0]}"

    def _require_few(self) -> None:
        """Raises DataError if too many rows of this pass are bad."""
        if self.max_bad_fraction is not None and self._reasons:
            require_few(self._reasons, self._tried, self.max_bad_fraction, self.bad_rows.examples[0])

    def _decide_labels(self) -> None:
        """Finds out how rows without a click are labelled, once."""
        if self._decided or not self._transform.with_label:
            return
        self._decided = True
        with closing(self._blocks()) as blocks:
            self._no_click[0] = kind_of_labels(self._transform, (block for _, block, _ in blocks))

    def _check(self) -> None:
        """Opens every file and sees whether it has what the transform needs."""
        for path in self._paths:
            with closing(open_reader(path, self.spec, self._labels)) as reader:
                reader.require(self._transform.columns)


_Placed = tuple[int, Block, float]
"""A block, with the position of its first row before it and how much of the input has been read behind it."""


class _Blocks:
    """The blocks of all files, one after the other; the last one can be put back."""

    def __init__(self, blocks: Generator[_Placed, None, None]) -> None:
        self._blocks = blocks
        self._last: _Placed | None = None
        self._put_back = False

    def __iter__(self) -> Iterator[_Placed]:
        return self

    def __next__(self) -> _Placed:
        if not self._put_back or self._last is None:
            self._last = next(self._blocks)
        self._put_back = False
        return self._last

    def put_back(self) -> int:
        """Give the last block again next time; the position of its first row."""
        assert self._last is not None
        self._put_back = True
        return self._last[0]

    def close(self) -> None:
        """Close the file."""
        self._blocks.close()


def _rows(block: Block, last: int) -> tuple[Cells, NDArray[np.uint8], NDArray[np.int32]]:
    """Cells, status and column of the first `last` rows of a block."""
    cells = block.cells
    wanted = Cells(cells.buffer, cells.starts[:last], cells.ends[:last])
    return wanted, block.status[:last], block.column[:last]
