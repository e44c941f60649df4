"""`Cells`: rows of text cells, to which every input is converted; `CodedCells`: cells with dictionaries."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features.text.value_text import BETWEEN_ELEMENTS, text_of_value


@dataclass(frozen=True, slots=True)
class Cells:
    """The text of `rows` x `columns` cells: cell `(i, j)` is `buffer[starts[i, j]:ends[i, j]]`.

    An empty cell is a missing value. Cells may be anywhere in the buffer, in any order.
    """

    buffer: NDArray[np.uint8]
    """uint8[at most 2**31 - 1], C-contiguous."""
    starts: NDArray[np.int32]
    """int32[rows, columns], C-contiguous."""
    ends: NDArray[np.int32]
    """int32[rows, columns], C-contiguous, each at least its start."""

    def __len__(self) -> int:
        return int(self.starts.shape[0])

    def part(self, first: int, last: int) -> Cells:
        """The rows `first..last-1`."""
        return Cells(self.buffer, self.starts[first:last], self.ends[first:last])

    def kept(self) -> Cells:
        """The same cells, with copies of `starts` and `ends`."""
        return Cells(self.buffer, self.starts.copy(), self.ends.copy())

    def with_texts(self, texts: Mapping[tuple[int, int], bytes]) -> Cells:
        """A copy in which some cells have other texts: `texts`, by row and column."""
        starts, ends, end = self.starts.copy(), self.ends.copy(), self.buffer.size
        for place, text in texts.items():
            starts[place], ends[place] = end, end + len(text)
            end += len(text)
        return Cells(np.append(self.buffer, np.frombuffer(b"".join(texts.values()), np.uint8)), starts, ends)

    def text(self, row: int, column: int) -> str:
        """One cell for a message: see `shown`."""
        return shown(self.buffer[self.starts[row, column] : self.ends[row, column]])


def shown(text: NDArray[np.uint8]) -> str:
    r"""Bytes of text for a message: invalid UTF-8 replaced by \ufffd, cut after 80 bytes."""
    start = text[:80].tobytes().decode("utf-8", "replace")
    return start + "…" if text.size > 80 else start


def cells_of_rows(
    rows: Sequence[Mapping[str, object]],
    columns: Sequence[str],
    *,
    numbers: Container[str],
    lists: Container[str] = (),
    ignored: Container[str] = (),
) -> Cells:
    """Cells of rows that are mappings of column names to values, such as JSON objects.

    `text_of_value` converts the values; None, NaN or an absent key is missing. Only columns in `numbers` take
    fractions: a category such as 0.1 has more than one spelling, and one that the training data does not use
    would be another feature. Only columns in `lists` take lists of such values, whose elements share a cell,
    separated by 0x1F. Raises DataError for any other value, and for columns that are neither in `columns` nor
    in `ignored`; it names the row, counted from 0, and the column.
    """
    names = set(columns)
    texts: list[bytes] = []
    for i, row in enumerate(rows):
        for key in row:
            if key not in names and key not in ignored:
                raise DataError(
                    f"rows[{i}]: the feature spec names no column {key!r:.80}; remove it, list it in the spec"
                    " under source.ignore, serve with --unknown-fields ignore, or use one of:"
                    f" {', '.join(columns)}."
                )
        texts.extend(encode_value(row.get(column), i, column, column in numbers, lists) for column in columns)
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    ends = np.cumsum(lengths)
    if ends.size and ends[-1] >= 2**31:
        raise DataError(f"{len(rows)} rows hold {ends[-1]} bytes of text; send fewer at a time.")
    shape = (len(rows), len(columns))
    return Cells(
        buffer=np.frombuffer(b"".join(texts), np.uint8),
        starts=(ends - lengths).astype(np.int32).reshape(shape),
        ends=ends.astype(np.int32).reshape(shape),
    )


def encode_value(value: object, row: int, column: str, is_number: bool, lists: Container[str]) -> bytes:
    """The cell of one value, as in `cells_of_rows`, with the same errors."""
    if isinstance(value, str):  # most are
        return _utf8(value, row, column)
    if isinstance(value, list):
        if column not in lists:
            raise DataError(
                f"rows[{row}].{column}: got the list {value!r:.80}, but its field takes one value; send that,"
                f" or give the field a type of several values in the spec, such as type: list."
            )
        places = (f"{column}[{k}]" for k in range(len(value)))
        return BETWEEN_ELEMENTS.join(
            encode_value(each, row, place, is_number, ()) for each, place in zip(value, places, strict=True)
        )
    if isinstance(value, int) and value.bit_length() > 64:
        raise DataError(f"rows[{row}].{column}: a number of more than 64 bits; send it as text.")
    text = text_of_value(value)
    if text is None:
        raise DataError(
            f"rows[{row}].{column}: expected text, a finite number, true, false or null,"
            f" got {value!r:.80} ({type(value).__name__})."
        )
    if isinstance(value, float) and not is_number and text and not text.lstrip("-").isdigit():
        raise DataError(
            f"rows[{row}].{column}: {value!r} is a fraction, or too large to be exact, but the field is a"
            f" category; send the text that the training data has."
        )
    return _utf8(text, row, column)


def _utf8(text: str, row: int, column: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise DataError(f"rows[{row}].{column}: {text!r:.80} is not valid Unicode text.") from None


@dataclass(frozen=True, eq=False, slots=True)
class Texts:
    """Text `i` is `buffer[starts[i]:ends[i]]`. The last text of a dictionary is empty: a missing value."""

    buffer: NDArray[np.uint8]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class CodedColumns:
    """Columns whose cells are codes of texts, and other columns, whose text is in `buffer`."""

    dictionaries: Mapping[int, Texts]
    """The texts of each coded column, by its position."""
    codes: NDArray[np.int32]
    """int32[dictionaries, rows]: the code of each cell in its column's dictionary."""
    buffer: NDArray[np.uint8]
    """The text of the other columns."""

    @cached_property
    def joined(self) -> NDArray[np.uint8]:
        """The texts of all dictionaries, followed by `buffer`."""
        return np.concatenate([*(texts.buffer for texts in self.dictionaries.values()), self.buffer])


class CodedCells(Cells):
    """Some rows of `CodedColumns`. `buffer`, `starts` and `ends` are computed on first use."""

    others: Cells
    """The cells of the columns that are not coded, in their order."""
    columns: CodedColumns
    first: int
    """The first row in `columns.codes`."""

    def __init__(self, others: Cells, columns: CodedColumns, first: int) -> None:
        for name, value in {"others": others, "columns": columns, "first": first}.items():
            object.__setattr__(self, name, value)  # as frozen dataclasses do

    def __len__(self) -> int:
        return len(self.others)

    def part(self, first: int, last: int) -> CodedCells:
        return CodedCells(self.others.part(first, last), self.columns, self.first + first)

    def kept(self) -> Cells:
        return self._placed

    @property
    def buffer(self) -> NDArray[np.uint8]:
        return self._placed.buffer

    @property
    def starts(self) -> NDArray[np.int32]:
        return self._placed.starts

    @property
    def ends(self) -> NDArray[np.int32]:
        return self._placed.ends

    @cached_property
    def _placed(self) -> Cells:
        """The same cells, without dictionaries."""
        width = len(self.columns.dictionaries) + self.others.starts.shape[1]
        starts, ends = np.empty((2, len(self), width), np.int32)
        rows, base = slice(self.first, self.first + len(self)), 0
        for codes, (column, texts) in zip(self.columns.codes, self.columns.dictionaries.items(), strict=True):
            starts[:, column] = texts.starts[codes[rows]] + base
            ends[:, column] = texts.ends[codes[rows]] + base
            base += texts.buffer.size
        places = [j for j in range(width) if j not in self.columns.dictionaries]
        starts[:, places] = self.others.starts + base
        ends[:, places] = self.others.ends + base
        return Cells(self.columns.joined, starts, ends)
