"""`RawSource`: the examples of raw files, read with a feature spec."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError, SpecError
from ctr.features.batches import Batch, BatchBuilder
from ctr.features.block import Block, require_wanted
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
from ctr.features.raw.split_pass import SplitPass
from ctr.features.readers import FAIL, BadRowHandler, BadRowPolicy, BadRows, RawFiles, RowChoice
from ctr.features.spec import SERVED, FeatureSpec
from ctr.features.text import Cells, RowStatus
from ctr.features.threads import Threads, in_order
from ctr.features.transform import History, Transform
from ctr.features.windows import ServedFeatures, Windows

if TYPE_CHECKING:
    from ctr.features.readers import SplitRows


class RawSource:
    """Reads raw files, one after the other, with a spec.

    The position of a row, as in `start`, `stop`, `count_rows` and `BadRows`, counts all data rows of all
    files, good or bad. So a part of the data is the same, whatever is done with bad rows.
    """

    position: int = 0
    """The position of the row after the last batch."""
    fraction_read: float = 0.0
    """By rows if the pass has a `stop`, otherwise by bytes of the files."""
    blocks_read: int = 0
    reads_served: bool
    """Whether rows carry the window features that they were served with."""
    shared_threads: Threads | None = None
    """Threads to use instead of the source's own."""
    watch: Callable[[Cells, NDArray[np.uint8]], None] | None = None
    """Called with the rows of a pass in order: the cells of `columns`, and the status of each row."""
    on_left_out: Callable[[NDArray[np.int64]], None] | None = None
    """Called with the ascending positions of the rows that a pass leaves out: bad or not chosen."""

    def __init__(
        self,
        spec: FeatureSpec,
        inputs: Sequence[str | Path | InputFile],
        *,
        on_bad_rows: BadRowPolicy = FAIL,
        labels: Labels = "required",
        threads: int = 1,
        choice: RowChoice | None = None,
        windows: History | None = None,
        also: Sequence[str] = (),
        with_fields: bool = False,
    ) -> None:
        """Opens each file (see `input_files`) once, so that a wrong header is reported before any work.

        `labels`: if ignored, files may lack labels (and weights), existing ones are not read, and batches
        have none; `absent`: likewise, and files without a header lack the label's column. `threads`: how many
        split and hash rows, while the iterating thread reads; 1: it does everything. The result is the same.
        `choice`: other rows are left out, but keep their positions and are not bad. `windows`: the state of
        the spec's windows; only one pass is then possible, which adds all rows to it, chosen or not, in one
        thread, with their labels if files have them. `also`: columns that are read for `watch`, whether or
        not the spec needs them. `with_fields`: batches have field ids.

        If the first rows of any file have the column `SERVED`, or `windows` is a `ServedFeatures`, the
        features of windows come from that column, as they were served, and other `windows` stay unchanged.

        Raises DataError; SpecError if spec and files do not fit, or the spec has windows and `windows` is
        None.
        """
        self.spec = spec
        self.raw = RawFiles(input_files(inputs), spec, labels, choice)
        self.reads_served = bool(spec.windows) and (
            isinstance(windows, ServedFeatures) or self.raw.any_has(SERVED)
        )
        if spec.windows and windows is None and not self.reads_served:
            raise SpecError(
                f"{self.raw.files[0]}: features of window {spec.windows[0].name!r} depend on earlier rows."
                " Build the data set first: `ctr features build`, with --windows-from if rows of another data"
                " set or model come before; use that instead of the raw files."
            )
        self._history = windows if spec.windows and not self.reads_served else None
        self.windows = windows if isinstance(windows, Windows) and spec.windows else None
        self.threads = threads if self._history is None else 1
        with_label = labels == "required"
        served, more = (ServedFeatures(spec), (SERVED,)) if self.reads_served else (None, ())
        more = (*also, *self._label_of_windows(), *more)
        compiled = partial(Transform, spec, with_label=with_label, with_fields=with_fields, also=more)
        self._transform = compiled(history=served)
        # For passes; `_transform` leaves windows unchanged.
        self._passing = self._transform if served else compiled(history=self._history, take_in=True)
        self._require_columns(also)
        self._bad = BadRowHandler(on_bad_rows, self._transform)
        self._file_rows: Sequence[int] | None = None
        self._splits: Sequence[Sequence[SplitRows]] | None = None
        self._first = 0
        """The first row that the pass still needs."""
        self._stopped: tuple[PlacedPiece, Generator[PlacedPiece, None, None]] | None = None

    def batches(self, rows: int, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """The good rows at the positions `start..stop-1`, exactly `rows` per batch; the last may have fewer.

        One pass at a time: `fraction_read` is that of the latest. Labels must be 0 or 1 in all rows, or -1
        or 1 in all; the majority of the first good rows decides which, for all passes.
        """
        if rows < 1 or start < 0:
            raise ValueError(f"rows is {rows} and start {start}: at least 1 and 0")
        if self._history is not None and (start > 0 or self._bad.tried > 0):
            raise ValueError("with windows there is one pass, from the first row on")
        self.fraction_read = 0.0
        with self._bad.pass_from(start):
            yield from self._fill(rows, start, stop)
        self.fraction_read = 1.0

    @property
    def on_bad_rows(self) -> BadRowPolicy:
        """What to do with bad rows."""
        return self._bad.policy

    @property
    def bad_rows(self) -> BadRows:
        """See `ExampleSource`."""
        return self._bad.left_out

    @property
    def reasons(self) -> Counter[str]:
        """What was wrong with the bad rows of the latest pass."""
        return self._bad.reasons

    def take_pass(self, splits: Sequence[Sequence[SplitPass]]) -> None:
        """Counts what tasks met, by file and in the order of its splits, as if this source had read the rows.

        Raises DataError as `batches` does at the end of a pass.
        """
        kind = 1  # undecided, as in `BatchBuilder`
        for file, of_file in zip(self.raw.files, splits, strict=True):
            for each in of_file:
                if 1 not in (kind, each.no_click) and each.no_click != kind:
                    raise DataError(
                        f"{file}: rows without a click have the label {each.no_click} here, and {kind}"
                        " before; write all of them as one of the two."
                    )
                kind = each.no_click if kind == 1 else kind
        position = 0
        with self._bad.pass_from(0):
            for each in (split for of_file in splits for split in of_file):
                self._bad.take(each.rows, each.bad + position, each.examples, each.reasons, each.kept)
                if self.on_left_out is not None and each.left_out.size:
                    self.on_left_out(each.left_out + position)
                position += each.rows
        self._file_rows = [sum(each.rows for each in of_file) for of_file in splits]
        self.fraction_read = 1.0

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return self._transform.columns

    @property
    def inputs(self) -> Sequence[InputFile]:
        """See `ExampleSource`."""
        return self.raw.files

    def sample(self, rows: int) -> Batch:
        """The first `rows` good examples, or all if there are fewer; bad rows are not counted."""
        builder = BatchBuilder(self._transform.layout, rows, self.no_click)
        with closing(self._blocks()) as blocks:
            while builder.spare_rows and (block := next(blocks, None)) is not None:
                self._transform.append(block.cells, block.status, block.column, builder, 0)
        return builder.take()

    def warnings(self) -> list[str]:
        """Warnings about the first rows, such as a field whose values are all the same feature."""
        absent = absent_columns(self.raw, self.columns)
        with closing(self._blocks()) as blocks:
            return absent + field_warnings(self._transform, blocks) + self.layout_warnings()

    def layout_warnings(self) -> list[str]:
        """Warnings about files whose layout does not fit the spec's source."""
        with closing(self._blocks()) as blocks:
            return quoted_cells(self._transform, blocks) + typed_categories(self.raw)

    def count_rows(self) -> int:
        """The number of data rows, good or bad. Text is read to its end for this, once."""
        return sum(self.rows_by_file())

    def rows_by_file(self) -> Sequence[int]:
        """The number of rows in each file; text is read to its end, unless a pass has already done so."""
        if self._file_rows is None:
            self._file_rows = [sum(rows for _, rows in of_file) for of_file in self.splits()]
        return self._file_rows

    def splits(self) -> Sequence[Sequence[SplitRows]]:
        """The splits of each file, as `count_splits` returns them. Text is read to its end for this, once."""
        if self._splits is None:
            self._splits = self.raw.count_splits()
        return self._splits

    def read_in_splits(self, splits: Sequence[Sequence[SplitRows]]) -> None:
        """Use these `splits` of the same files: passes then leave out those before their first row."""
        self._splits = splits

    def count_not_chosen(self, rows: int) -> list[int]:
        """For each `rows` rows, in order, how many are not chosen; empty if all are chosen."""
        counts = Counter[int]()
        for positions in self.not_chosen():
            counts.update((positions // rows).tolist())
        return [counts[part] for part in range(-(-self.count_rows() // rows))] if counts else []

    def not_chosen(self) -> Iterator[NDArray[np.int64]]:
        """The positions of rows that are not chosen, ascending, some at a time."""
        position = 0
        for block in self.raw.blocks([]) if self.raw.choice is not None else ():
            yield np.flatnonzero(block.status == RowStatus.ELSEWHERE) + position
            position += block.status.size

    def _fill(self, rows: int, start: int, stop: int | None) -> Iterator[Batch]:
        """As `batches`."""
        builder = BatchBuilder(self._transform.layout, rows, self.no_click)
        for part in self._parts(start, stop):
            row = part.first
            while row < part.last:
                first, row = row, part.append_to(builder, row)
                self._leave_out(part, first, row)
                if self.watch is not None and isinstance(part, PlacedBlock):
                    self.watch(*part.rows(first, row))
                self.position = part.position + row
                read = self.position - start
                self.fraction_read = part.fraction if stop is None else read / (stop - start)
                if builder.spare_rows == 0:
                    yield builder.take()
        if builder.rows:
            yield builder.take()

    def _parts(self, start: int, stop: int | None) -> Iterator[PlacedBlock | HashedPiece]:
        """The rows `start..stop-1`, in order."""
        pieces = self._wanted(start, stop)
        for piece in pieces:
            yield from piece.blocks(self._passing)
            # Until the label of rows without a click is known, rows are read in order: the first one decides.
            if (
                self.threads > 1
                and self.watch is None
                and not (self._transform.with_label and self.no_click[0] == 1)
            ):
                break
        else:
            return
        yield from in_order(
            lambda each: each.hashed(self._transform, self.no_click),
            pieces,
            self.shared_threads or self.threads,
        )

    def _wanted(self, start: int, stop: int | None) -> Iterator[PlacedPiece]:
        """The rows `start..stop-1`, piece by piece.

        For consecutive parts of the data, earlier rows are not read again: a pass continues in the piece in
        which the previous one stopped.
        """
        self._first = start
        stopped, self._stopped = self._stopped, None
        if stopped is not None and stopped[0].position > start:
            stopped[1].close()
            stopped = None
        pieces = self._pieces() if stopped is None else stopped[1]
        piece = next(pieces, None) if stopped is None else stopped[0]
        del stopped  # it would keep the piece in memory
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
        """All rows, piece by piece, but no pieces of splits that end before the first row needed."""
        total, done, position, counts = max(sum(file.size for file in self.raw.files), 1), 0, 0, []
        for number, file in enumerate(self.raw.files):
            if isinstance(file, StandardInput):
                file.begin_pass()
            before = position
            splits = self._splits_of(number)
            for index, (split, rows) in enumerate(splits):
                end = None if rows is None else position + rows
                if end is None or end > self._first:
                    with closing(self.raw.open(split)) as reader:
                        for piece in reader.pieces(self.columns):
                            self.blocks_read += 1
                            share = (index + reader.fraction) / len(splits)
                            fraction = (done + file.size * share) / total
                            yield PlacedPiece(piece, position, fraction, 0, piece.rows)
                            position += piece.rows
                            if end is not None and end <= self._first:  # of the rows needed next
                                break
                        else:
                            if end not in (None, position):
                                raise DataError(
                                    f"{split}: has other rows here than where they were counted; every worker"
                                    " needs the same data at the same path."
                                )
                position = position if end is None else end
            done += file.size
            counts.append(position - before)
        self._file_rows = counts

    def _splits_of(self, number: int) -> Sequence[tuple[InputFile, int | None]]:
        """The splits of a file, and their numbers of rows, if known."""
        file = self.raw.files[number]
        if self._splits is None:
            return [(file, None)]
        of_file = self._splits[number]
        from ctr.features.readers import splits_at

        splits = splits_at(file, self.spec, [start for start, _ in of_file])
        return [(split, rows) for split, (_, rows) in zip(splits, of_file, strict=True)]

    def _blocks(self) -> Generator[Block, None, None]:
        """All rows, block by block, each valid until the next one."""
        return self.raw.blocks(self.columns)

    def _leave_out(self, part: PlacedBlock | HashedPiece, first: int, last: int) -> None:
        """Handles the bad rows and those not chosen among the rows `first..last-1` of a part."""
        at = first
        for rows, places in part.bad(first, last):
            if self.on_left_out is not None:
                self.on_left_out(rows.position + places)
            bad = places[rows.block.status[places] != RowStatus.ELSEWHERE]
            end = min(rows.position - part.position + rows.last, last)
            self._bad.tried += int(end - at - (places.size - bad.size))
            at = end
            if bad.size:
                self._bad.handle(rows.block, bad, rows.position)
        self._bad.tried += last - at

    @cached_property
    def no_click(self) -> NDArray[np.int8]:
        """int8[1]: the label of rows without a click (see `BatchBuilder`); the first rows decide, once."""
        kind = 1
        if self._transform.with_label:
            with closing(self._blocks()) as blocks:
                kind = kind_of_labels(self._transform, blocks)
        return np.array([kind], np.int8)

    def _label_of_windows(self) -> Sequence[str]:
        """The label's column, if windows may use it: every file must have it."""
        label = self.spec.label_column
        if self._history is None or label is None:
            return ()
        return (label,) if all(label in reader.columns for _, reader in self.raw.readers()) else ()

    def _require_columns(self, also: Sequence[str]) -> None:
        """Raises DataError unless every file has the transform's columns, including `also`."""
        needed = [name for name in self.columns if name not in also]
        why = "which was asked for"
        for file, reader in self.raw.readers():
            reader.require(needed)
            require_wanted(file, reader, also, why)
        for text in absent_columns(self.raw, also, why) if also else ():
            raise DataError(f"{self.raw.files[0]}: {text}.")
