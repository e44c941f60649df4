"""`show`: the texts, features and slots of a few rows; `collisions`: how many features share a slot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ctr.errors import DataError
from ctr.features.batches import BatchBuilder
from ctr.features.block import Block, explain
from ctr.features.inputs import input_files
from ctr.features.raw import RawSource, fit
from ctr.features.readable import CollisionCounter, Collisions, Naming, slots_of
from ctr.features.readers import SKIP, RawFiles
from ctr.features.spec import FeatureSpec, column_of
from ctr.features.text import BETWEEN_ELEMENTS, Cells
from ctr.features.transform import Transform
from ctr.features.windows import Windows

_SAMPLED_ROWS = 8_192
NONE = "none"
"""Shown for a field that has no feature in a row."""


@dataclass(frozen=True, slots=True)
class ShownFeature:
    """One feature of a row, or a field without a feature in it."""

    field: str
    """The name of the field or cross."""
    text: str
    """The cell; empty for a cross."""
    feature: str
    slot: int | None
    value: float = 1.0


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row and its features, in the order of the spec's fields and crosses."""

    place: str
    """Where the row is, such as `clicks.tsv:17`; for a bad row, also what is wrong with it."""
    features: tuple[ShownFeature, ...]

    def to_json(self) -> dict[str, Any]:
        """The fields by name, as JSON values."""
        return asdict(self)


def show(spec: FeatureSpec, inputs: Sequence[str], rows: int) -> list[ShownRow]:
    """The first `rows` rows that can be split into cells; an unfitted spec is first fitted on all rows.

    Features of windows are left out, as they depend on other rows.

    Raises DataError for data that carries its own features, if there is no such row, and as reading does.
    """
    if not spec.fields:
        raise DataError(f"{spec.source.format} data carries its own features: there are no fields to show.")
    spec = fit(spec, inputs).of_fields(spec.fields)
    columns = spec.columns
    naming = Naming(spec, columns)
    shown = list(islice(_rows(spec, naming, columns, inputs), rows))
    if not shown:
        raise DataError(f"{inputs[0]}: no row can be split into its columns; see `ctr features check`.")
    return shown


def show_values(transform: Transform, cells: Cells) -> ShownRow:
    """The one row of `cells`, which `transform` accepts. Features of windows are left out."""
    if (cached := _NAMINGS.get(transform)) is None:
        spec = transform.spec.of_fields(transform.spec.fields)
        cached = _NAMINGS[transform] = spec, Naming(spec, transform.columns)
    spec, naming = cached
    shown = _named(spec, naming, transform.columns, cells, "the row")
    naming.forget()  # values of requests would stay in memory
    return shown


_NAMINGS: WeakKeyDictionary[Transform, tuple[FeatureSpec, Naming]] = WeakKeyDictionary()
"""Cached for `show_values`, as they take longer than a row: a naming has a transform for each field."""


def collisions(spec: FeatureSpec, paths: Sequence[str | Path], rows: int = 100_000) -> Collisions:
    """The features of the first `rows` rows of raw files, by field, and how many of them share a slot.

    Bad rows and features of windows are left out. Raises DataError, also if all rows are bad, and SpecError
    as `RawSource` does.
    """
    source = RawSource(spec, paths, on_bad_rows=SKIP, labels="ignored", windows=Windows(spec))
    counter = CollisionCounter(spec, source.columns)
    source.watch = counter.add
    for _ in source.batches(_SAMPLED_ROWS, stop=rows):
        pass
    counted = counter.collisions()
    if not counted.rows:
        raise DataError(
            f"no row can be read: {source.bad_rows.examples[0]}; give raw rows such as the data set was made"
            " from."
        )
    return counted


def _rows(
    spec: FeatureSpec, naming: Naming, columns: Sequence[str], inputs: Sequence[str]
) -> Iterator[ShownRow]:
    of_fields = Transform(spec.model_copy(update={"windows": (), "crosses": ()}), with_label=False)
    for block in RawFiles(input_files(inputs), spec).blocks(columns):
        for row in np.flatnonzero(block.status == 0).tolist():
            yield _row(spec, naming, of_fields, columns, block, row)


def _row(
    spec: FeatureSpec, naming: Naming, of_fields: Transform, columns: Sequence[str], block: Block, row: int
) -> ShownRow:
    place, cells = block.origin.place(row), block.cells.part(row, row + 1)
    alone = Block(cells, block.status[row : row + 1].copy(), np.zeros(1, np.int32), block.origin)
    of_fields.append(cells, alone.status, alone.column, BatchBuilder(of_fields.layout, 1), 0)
    if alone.status[0]:
        return ShownRow(f"{place}: {explain(of_fields, alone, 0)[0]}", ())
    return _named(spec, naming, columns, cells, place)


def _named(spec: FeatureSpec, naming: Naming, columns: Sequence[str], cells: Cells, place: str) -> ShownRow:
    """The only row of `cells`, which must be good."""
    row_features = naming.of(cells, np.zeros(1, np.uint8))
    texts = {field.name: _cell(cells, columns.index(column_of(field))) for field in spec.fields}
    shown = []
    for number, name in enumerate(naming.names):
        _, hashes, values = row_features.features[number]
        readable = [
            text.removeprefix(f"{name}=") for text in row_features.texts(number, np.arange(hashes.size))
        ]
        slots = slots_of(hashes, spec.bits).tolist()
        each = [1.0] * max(len(slots), 1) if values is None else values.tolist() or [1.0]
        for feature, slot, value in zip(readable or [NONE], slots or [None], each, strict=True):
            shown.append(ShownFeature(name, texts.get(name, ""), feature, slot, value))
    return ShownRow(place, tuple(shown))


def _cell(cells: Cells, column: int) -> str:
    """The text of the only row; elements of a list are separated by commas."""
    return cells.text(0, column).replace(BETWEEN_ELEMENTS.decode(), ", ")
