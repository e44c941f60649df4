"""`RawSource`: the examples of raw files, through a feature spec."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError, SpecError, named
from ctr.features.batches import Batch, BatchBuilder
from ctr.features.block import Block, blocks_of, require_wanted
from ctr.features.inputs import InputFile, StandardInput, input_files
from ctr.features.lines import Labels
from ctr.features.raw.pieces import HashedPiece, PlacedBlock, PlacedPiece
from ctr.features.raw.preview import (
    absent_columns,
    field_warnings,
    kind_of_labels,
    quoted_cells,
    typed_categories,
)
from ctr.features.readers import (
    EARLY_ROWS,
    BadRows,
    Quarantine,
    RowChoice,
    open_reader,
    require_few,
)
from ctr.features.spec import FeatureSpec
from ctr.features.text import Cells, RowStatus
from ctr.features.threads import Threads, in_order
from ctr.features.transform import Transform
from ctr.features.windows import Windows

OnBadRows = Literal["fail", "skip", "quarantine"]


class RawSource:
    """Reads raw files, one after the other, through a spec.

    A row's position, in which `start`, `stop`, `count_rows` and `BadRows` count, is its place among all data
    rows of all files, good or bad. So a part of the data is the same whatever is done with bad rows.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        inputs: Sequence[str | Path | InputFile],
        *,
        on_bad_rows: OnBadRows = "fail",
        quarantine: Path | None = None,
        max_bad_fraction: float | None = None,
        labels: Labels = "required",
        threads: int = 1,
        choice: RowChoice | None = None,
        windows: Windows | None = None,
        also: Sequence[str] = (),
        with_fields: bool = False,
    ) -> None:
        """Opens each file (see `input_files`) once, so that a wrong header is reported before any work.

        `on_bad_rows`: `fail` raises DataError at the first, `skip` leaves them out, `quarantine` also writes
        them, as they stand, to the file `quarantine`; that replaces an older one when the first pass with a
        bad row ends, however it ends. `max_bad_fraction`: a pass with more bad rows (see `too_many`) ends
        with a DataError that counts them by reason; None: all may be. `labels`: if ignored, files may lack
        labels (and weights), those that are there are not looked at, and the batches have none; `absent`:
        likewise, and files without a header do lack the label's column. `threads`: so many split and hash
        rows, while the one that iterates reads; 1: that does all. What comes out is the same. `choice`: other
        rows are left out, though they have their positions; they are not bad. `windows`: what those of the
        spec know of earlier rows; one pass is then possible, which takes all rows in, chosen or not, in one
        thread, with their labels where files have them. `also`: columns that are read for `watch`, whether
        the spec needs them or not. `with_fields`: batches have field ids.

        Raises DataError, or SpecError when spec and files do not fit, or windows are there without `windows`.
        """
        if (on_bad_rows == "quarantine") != (quarantine is not None):
            raise ValueError("a quarantine file is given if and only if on_bad_rows is 'quarantine'")
        if spec.windows and windows is None:
            raise SpecError(
                f"window {spec.windows[0].name!r}: its features depend on earlier rows. Build the data set"
                f" first: `ctr features build`, and use that instead of the raw files."
            )
        self.spec = spec
        self.files = input_files(inputs)
        self.on_bad_rows = on_bad_rows
        self.max_bad_fraction = max_bad_fraction
        self._tried = 0  # rows of the pass that were chosen
        self._reasons: Counter[str] = Counter()  # of its bad rows
        self._quarantine = None if quarantine is None else Quarantine(quarantine)
        self._labels = labels
        self.choice = choice
        self._also = tuple(also)
        self.windows = windows if spec.windows else None
        compiled = partial(
            Transform,
            spec,
            with_label=labels == "required",
            with_fields=with_fields,
            also=(*also, *self._label_of_windows()),
        )
        self._transform = compiled()
        # For passes; the other one leaves windows unchanged.
        self._passing = compiled(history=self.windows, take_in=True)
        self._check()
        self._file_rows: list[int] | None = None
        self.position = 0
        """The position of the row after the last batch."""
        self.fraction_read = 0.0  # by rows if the pass has a `stop`, else by bytes of file
        self.blocks_read = 0
        self.bad_rows = BadRows()
        self.threads = threads if self.windows is None else 1
        self.shared_threads: Threads | None = None
        """What does the work of several threads, if they are not to be the source's own."""
        self._stopped: tuple[PlacedPiece, Generator[PlacedPiece, None, None]] | None = None
        self.watch: Callable[[Cells, NDArray[np.uint8]], None] | None = None
        """Called with the rows of a pass in order: the cells of `columns`, and the status of each row."""
        self.on_left_out: Callable[[NDArray[np.int64]], None] | None = None
        """Called with the positions of the rows that a pass leaves out, bad or not chosen, ascending."""
        self._no_click = np.ones(1, np.int8)  # see `BatchBuilder.no_click`
        self._decided = False

    def batches(self, rows: int, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """The good rows at the positions `start..stop-1`, exactly `rows` in each batch but the last.

        One pass at a time: `fraction_read` is that of the latest. Labels must be 0 or 1 in all rows, or -1
        or 1 in all; the majority of the first good rows decides which, for all passes.
        """
        if rows < 1 or start < 0:
            raise ValueError(f"rows is {rows} and start {start}: at least 1 and 0")
        if self.windows is not None and (start > 0 or self._tried > 0):
            raise ValueError("with windows there is one pass, from the first row on")
        self._decide_labels()
        self.fraction_read = 0.0
        self._tried, self._reasons = 0, Counter()
        try:
            yield from self._fill(rows, start, stop)
            self._require_few()
        finally:
            if self._quarantine is not None:
                self._quarantine.put_in_place()
        self.fraction_read = 1.0

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return self._transform.columns

    @property
    def inputs(self) -> Sequence[InputFile]:
        """See `ExampleSource`."""
        return self.files

    def sample(self, rows: int) -> Batch:
        """The first `rows` good examples, or all when there are fewer; bad rows are not counted."""
        self._decide_labels()
        builder = BatchBuilder(self._transform, rows, self._no_click)
        with closing(self._blocks()) as blocks:
            while builder.room and (block := next(blocks, None)) is not None:
                self._transform.append(block.cells, block.status, block.column, builder, 0)
        return builder.take()

    def warnings(self) -> list[str]:
        """Warnings about the first rows, such as a field whose values are all the same feature."""
        absent = absent_columns(self.spec, self.files, self.columns, self._labels, self.choice)
        with closing(self._blocks()) as blocks:
            return absent + field_warnings(self._transform, blocks) + self.layout_warnings()

    def layout_warnings(self) -> list[str]:
        """Warnings about a layout of the files that does not fit the spec's source."""
        with closing(self._blocks()) as blocks:
            return quoted_cells(self._transform, blocks) + typed_categories(self.spec, self.files)

    def count_rows(self) -> int:
        """The number of data rows, good or bad. Text is read through for it, once."""
        return sum(self.rows_by_file())

    def rows_by_file(self) -> Sequence[int]:
        """The number of rows in each file; text is read completely, unless a pass has already done so."""
        if self._file_rows is None:
            counts = []
            for file in self.files:
                if isinstance(file, StandardInput):
                    raise file.once()
                with closing(open_reader(file, self.spec, self._labels, self.choice)) as reader:
                    counts.append(reader.count_rows())
            self._file_rows = counts
        return self._file_rows

    def count_not_chosen(self, rows: int) -> list[int]:
        """For each `rows` rows, in order, how many are not chosen; empty: all are chosen."""
        counts = Counter[int]()
        for positions in self.not_chosen():
            counts.update((positions // rows).tolist())
        return [counts[part] for part in range(-(-self.count_rows() // rows))] if counts else []

    def not_chosen(self) -> Iterator[NDArray[np.int64]]:
        """The positions of the rows that are not chosen, ascending, some at a time."""
        position = 0
        for block in self._blocks([]) if self.choice is not None else ():
            yield np.flatnonzero(block.status == RowStatus.ELSEWHERE) + position
            position += block.status.size

    def _fill(self, rows: int, start: int, stop: int | None) -> Iterator[Batch]:
        """As `batches`."""
        builder = BatchBuilder(self._transform, rows, self._no_click)
        for part in self._parts(start, stop):
            row = part.first
            while row < part.last:
                first, row = row, part.append_to(builder, row)
                self._note(start, part, first, row)
                if self.watch is not None and isinstance(part, PlacedBlock):
                    self.watch(*part.rows(first, row))
                self.position = part.position + row
                read = self.position - start
                self.fraction_read = part.fraction if stop is None else read / (stop - start)
                if builder.room == 0:
                    yield builder.take()
        if builder.rows:
            yield builder.take()

    def _parts(self, start: int, stop: int | None) -> Iterator[PlacedBlock | HashedPiece]:
        """The rows `start..stop-1`, in order."""
        pieces = self._wanted(start, stop)
        for piece in pieces:
            yield from piece.blocks(self._passing)
            # As long as it is open how rows without a click are labelled, the first of them decides.
            if (
                self.threads > 1
                and self.watch is None
                and not (self._transform.with_label and self._no_click[0] == 1)
            ):
                break
        else:
            return
        yield from in_order(
            lambda each: each.hashed(self._transform, self._no_click),
            pieces,
            self.shared_threads or self.threads,
        )

    def _wanted(self, start: int, stop: int | None) -> Iterator[PlacedPiece]:
        """The rows `start..stop-1`, piece by piece.

        Parts of the data that follow each other are read without reading earlier rows again: a pass goes on
        in the piece in which the one before it stopped.
        """
        stopped, self._stopped = self._stopped, None
        if stopped is not None and stopped[0].position > start:
            stopped[1].close()
            stopped = None
        pieces = self._pieces() if stopped is None else stopped[1]
        piece = next(pieces, None) if stopped is None else stopped[0]
        del stopped  # which would keep the piece in memory
        while piece is not None:
            end = piece.position + piece.last
            first = max(start - piece.position, 0)
            last = (end if stop is None else min(end, stop)) - piece.position
            if first < last:
                yield replace(piece, first=first, last=last)
            if stop is not None and end >= stop:
                self._stopped = piece, pieces
                break
            piece = next(pieces, None)

    def _pieces(self) -> Generator[PlacedPiece, None, None]:
        """All rows, piece by piece."""
        sizes = [file.size for file in self.files]
        total, position, counts = max(sum(sizes), 1), 0, []
        for i, file in enumerate(self.files):
            if isinstance(file, StandardInput):
                file.begin_pass()
            before = position
            with closing(open_reader(file, self.spec, self._labels, self.choice)) as reader:
                for piece in reader.pieces(self._transform.columns):
                    self.blocks_read += 1
                    done = (sum(sizes[:i]) + sizes[i] * reader.fraction) / total
                    yield PlacedPiece(piece, position, done, 0, piece.rows)
                    position += piece.rows
            counts.append(position - before)
        self._file_rows = counts

    def _blocks(self, columns: Sequence[str] | None = None) -> Generator[Block, None, None]:
        """All rows, block by block, with these columns; None: those of the transform."""
        for file in self.files:
            with closing(open_reader(file, self.spec, self._labels, self.choice)) as reader:
                yield from blocks_of(reader, self.columns if columns is None else columns)

    def _note(self, start: int, part: PlacedBlock | HashedPiece, first: int, last: int) -> None:
        """Handles the bad rows among `first..last-1` of a part, in a pass that began at `start`."""
        tried = self._tried - first
        for rows, bad in part.bad(first, last):
            if self.on_left_out is not None:
                self.on_left_out(rows.position + bad)
            behind = min(rows.position - part.position + rows.last, last)
            is_bad = rows.block.status[bad] != RowStatus.ELSEWHERE
            tried -= int(bad.size - np.count_nonzero(is_bad))
            self._tried = tried + behind
            if is_bad.any():
                self._note_bad(start, rows.block, bad[is_bad], rows.position)
        self._tried = tried + last

    def _note_bad(self, start: int, block: Block, bad: NDArray[np.int64], position: int) -> None:
        """Handles bad rows of a block whose first row has this position."""
        if self.on_bad_rows == "fail":
            skipping = named("on_bad_rows", "skip", "quarantine")
            raise DataError(f"{self._describe(block, int(bad[0]))}; fix the row or use {skipping}.")
        new = self.bad_rows.add(start, position + bad, lambda i: self._describe(block, int(bad[i])))
        if self._quarantine is not None and new.size:
            self._quarantine.keep(block.origin.raw(int(row)) for row in bad[new])
        self._reasons.update(self._explain(block, int(row))[1] for row in bad)
        if self._tried >= EARLY_ROWS:
            self._require_few()

    def _explain(self, block: Block, row: int) -> tuple[str, str]:
        """What is wrong with a bad row, with and without the value met."""
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
        """Decides once how rows without a click are labelled."""
        if self._decided or not self._transform.with_label:
            return
        self._decided = True
        with closing(self._blocks()) as blocks:
            self._no_click[0] = kind_of_labels(self._transform, blocks)

    def _label_of_windows(self) -> Sequence[str]:
        """The label's column, for windows of files that have it; no other."""
        label = self.spec.label_column
        if self.windows is None or label is None:
            return ()
        for file in self.files:
            with closing(open_reader(file, self.spec, self._labels, self.choice)) as reader:
                if label not in reader.columns:
                    return ()
        return (label,)

    def _check(self) -> None:
        """Opens every file and checks that it has the columns of the transform and those of `also`."""
        needed = [name for name in self.columns if name not in self._also]
        why = "which was asked for"
        for file in self.files:
            with closing(open_reader(file, self.spec, self._labels, self.choice)) as reader:
                reader.require(needed)
                require_wanted(file, reader, self._also, why)
        if self._also:
            for text in absent_columns(self.spec, self.files, self._also, self._labels, self.choice, why):
                raise DataError(f"{self.files[0]}: {text}.")
