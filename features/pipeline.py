"""`Pipeline`: a feature spec for tables in the memory of Python programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from yaml import YAMLError

from ctr.errors import DataError, SpecError, path_of
from ctr.features.batches import Batch, BatchBuilder
from ctr.features.block import blocks_of, explain
from ctr.features.folder import folder_bytes, folder_of_bytes
from ctr.features.inputs import BytesFile
from ctr.features.lines import JsonLinesReader
from ctr.features.raw import learn
from ctr.features.spec import (
    FeatureSpec,
    FittedSpec,
    column_of,
    dump_yaml,
    learnt_of,
    load_spec,
    parse_spec,
    write_fitted_spec,
)
from ctr.features.tables import TableReader
from ctr.features.transform import Transform

if TYPE_CHECKING:
    from scipy import sparse

_FORMAT = "ctr-features"


class Pipeline:
    """The transform of a feature spec, for tables in memory: fit it, and transform tables to sparse matrices.

    A table is any object that exports Arrow (`__arrow_c_stream__`): a `pyarrow.Table`, or a frame of pandas
    (2.2 or newer) or polars. Columns are found by name; the spec's `source` does not matter, and columns that
    the spec does not name are allowed. Values become features as in files, so commands and models with the
    same spec have the same slots.

    >>> import pyarrow as pa
    >>> from ctr.features import Pipeline
    >>> pipeline = Pipeline.from_yaml('''
    ... version: 1
    ... source: {format: parquet}
    ... label: click
    ... bits: 18
    ... fields:
    ...   - {name: site, type: category}
    ...   - {name: price, type: number, transform: quantiles, buckets: 4}
    ... crosses: [site * price]
    ... ''')
    >>> table = pa.table({
    ...     "site": ["news", "shop", "news", None],
    ...     "price": [0.5, 2, 3.25, 9],
    ...     "click": [0, 1, 1, 0],
    ... })
    >>> matrix = pipeline.fit(table).transform(table)
    >>> matrix.shape, str(matrix.dtype), matrix.getnnz(axis=1).tolist()
    ((4, 262144), 'float32', [4, 4, 4, 2])
    >>> pipeline.labels(table).tolist()
    [0.0, 1.0, 1.0, 0.0]

    Rows that are scored one by one, as dicts, give the same features:

    >>> one = pipeline.transform([{"site": "shop", "price": 2}])
    >>> bool((one != matrix[1]).nnz == 0)
    True
    """

    spec: FeatureSpec
    """Once fitted, it includes what was learnt."""

    def __init__(self, spec: FeatureSpec | str | Path | Mapping[str, Any]) -> None:
        """`spec`: a FeatureSpec, or what else `spec_of` accepts: a YAML file, the name of a spec that ships
        with the package, YAML text, a dict.

        Raises SpecError as `spec_of` does, for specs with windows, and for formats whose rows carry their own
        features.
        """
        spec = spec_of(spec)
        if not spec.fields:
            raise SpecError(
                f"{spec.source.format} data carries its own features, so there are no columns to make any of;"
                f" give a feature spec with fields."
            )
        if spec.windows:
            raise SpecError(
                f"window {spec.windows[0].name!r}: a pipeline keeps no rows to look back at; build"
                f" a data set with `ctr features build`, or remove the windows."
            )
        self.spec = spec
        self._unfitted = parse_spec(spec.to_yaml(), "the spec") if isinstance(spec, FittedSpec) else spec
        self._transform: Transform | None = None

    @staticmethod
    def from_yaml(spec: str | Path) -> Pipeline:
        """A pipeline from a YAML file, the name of a spec that ships with the package, or YAML text.

        Text is recognized by its line ends or its `{`. Raises SpecError.

        >>> Pipeline.from_yaml("criteo")
        <Pipeline, fields: 39, slots: 2**22>
        """
        return Pipeline(spec)

    @staticmethod
    def load(folder: str | Path) -> Pipeline:
        """The pipeline that `save` or `ctr features fit` wrote, or that of a data set or model.

        Raises SpecError.
        """
        if not path_of("folder", folder).is_dir():
            raise SpecError(
                f"{folder}: there is no such folder; give that of Pipeline.save, of a data set or of a model."
            )
        return Pipeline(load_spec(folder))

    def __repr__(self) -> str:
        crosses = f", crosses: {len(self.spec.crosses)}" if self.spec.crosses else ""
        unfitted = "" if self.is_fitted else ", not fitted"
        return f"<Pipeline, fields: {len(self.spec.fields)}{crosses}, slots: 2**{self.spec.bits}{unfitted}>"

    def __reduce__(self) -> tuple[Callable[[Any], Pipeline], tuple[str | bytes]]:
        """Pickles the spec, or once fitted, the bytes of the pipeline's folder."""
        if self.is_fitted:
            return _of_bytes, (folder_bytes(self.save),)
        return Pipeline, (self.spec.to_yaml(),)

    @property
    def is_fitted(self) -> bool:
        """Whether it can transform: the spec has nothing to learn, or has learnt it."""
        return learnt_of(self.spec) is not None

    def fit(self, table: object, y: object = None) -> Pipeline:
        """Learns from all rows what the spec needs, such as quantiles and counts, and returns itself.

        Forgets what it learnt before. `y` is ignored; scikit-learn passes it. If `table` is not a table or
        lacks a column, raises DataError and does not change.
        """
        reader = TableReader(table, self.spec)
        reader.require([column_of(field) for field in self.spec.fields])
        self.spec, self._transform = learn(self._unfitted, reader.pieces), None
        return self

    def transform(self, table: object) -> sparse.csr_matrix[Any]:
        """The features of all rows: float32 CSR of shape `(rows, 2**bits)`.

        A column is a slot; slot 0 is the bias. Two features of a row that collide are two entries with one
        slot; SciPy adds them when it computes. `table` may also be a list of dicts, one per row, as they are
        sent for scoring; columns that are not in the spec are then an error.

        Raises SpecError before `fit` if the spec has to learn. Raises DataError if `table` is not a table,
        lacks a column, or has an invalid value, whose row is named.
        """
        return batch_of(table, self._ready()).to_scipy(self.spec.bits)

    def labels(self, table: object) -> NDArray[np.float32]:
        """float32[rows], each 0 or 1: the label column, which has 0 and 1, or -1 and 1. Needs no `fit`."""
        labels = self._targets(table).labels
        assert labels is not None
        return labels

    def weights(self, table: object) -> NDArray[np.float32] | None:
        """float32[rows]: the weight column; None if the spec names none. Needs no `fit`."""
        return self._targets(table).weights

    def save(self, folder: str | Path) -> None:
        """Writes the spec, and what it has learnt, as a folder, complete or not at all.

        `load` and the option `--spec` of commands read it. Replaces a pipeline that is there. Raises
        SpecError before `fit` if the spec has to learn, and DataError if something else is there or writing
        fails.
        """
        self._ready()
        try:
            write_fitted_spec(self.spec, path_of("folder", folder))
        except OSError as error:
            raise DataError(f"{folder}: the pipeline could not be written ({error}).") from None

    def _ready(self) -> Transform:
        if not self.is_fitted:
            name = next(field.name for field in self.spec.fields if field.learns)
            raise SpecError(
                f"field {name!r}: its transform learns from data first; call pipeline.fit(table) before this."
            )
        if self._transform is None:
            self._transform = Transform(self.spec, with_label=False)
        return self._transform

    def _targets(self, table: object) -> Batch:
        """The rows with labels and weights, and no features but the bias."""
        no_features = self.spec.model_copy(update={"fields": (), "crosses": (), "scales": {}})
        transform = Transform(no_features, with_label=True)
        if _are_dicts(table):  # for dicts, columns that the spec does not name would be an error
            table = [{name: row.get(name) for name in transform.columns} for row in table]
        return batch_of(table, transform)


def _of_bytes(content: bytes) -> Pipeline:
    with folder_of_bytes(content) as folder:
        return Pipeline.load(folder)


def spec_of(spec: FeatureSpec | str | Path | Mapping[str, Any]) -> FeatureSpec:
    """A spec from a YAML file, a fitted folder, the name of a spec that ships with the package, or YAML text.

    A dict has the keys and values of the YAML. Text is recognized by its line ends or its `{`. A FeatureSpec
    is returned as it is. Raises SpecError.
    """
    if isinstance(spec, FeatureSpec):
        return spec
    if isinstance(spec, Mapping):
        try:
            return parse_spec(dump_yaml(dict(spec)), "the spec", lines=False)
        except YAMLError as error:
            raise SpecError(f"the spec: a value is neither text, number, list nor dict ({error}).") from None
    if not isinstance(spec, str | Path):
        raise SpecError(
            "spec: expected the path of a YAML file, the name of a spec that ships with the package, YAML"
            f" text, a dict, or a FeatureSpec, got {type(spec).__name__}."
        )
    if isinstance(spec, str) and ("\n" in spec or spec.lstrip().startswith("{")):
        return parse_spec(spec, "the YAML text")
    return load_spec(spec)


def batch_of(table: object, transform: Transform) -> Batch:
    """The transformed rows of a table, or of a list of dicts as they are sent for scoring.

    Raises DataError for anything else, for a missing column, and for the first bad row.
    """
    if _are_dicts(table):
        return transform.apply_rows(table)
    reader = TableReader(table, transform.spec)
    reader.require(transform.columns)
    builder = BatchBuilder(transform.layout, reader.count_rows())
    for block in blocks_of(reader, transform.columns):
        transform.append(block.cells, block.status, block.column, builder, 0)
        if block.status.any():
            row = int(np.flatnonzero(block.status)[0])
            problem, _ = explain(transform, block, row)
            raise DataError(f"{block.origin.place(row)}: {problem}; correct or drop the row.")
    return builder.take()


def batch_of_lines(name: str, text: bytes, transform: Transform) -> tuple[Batch, dict[int, str]]:
    """The good rows of JSON lines, and what is wrong with the others, by number; `name` is for messages."""
    reader = JsonLinesReader(BytesFile(name, text), transform.spec)
    builder, problems, first = BatchBuilder(transform.layout, text.count(b"\n") + 1), dict[int, str](), 0
    for block in blocks_of(reader, transform.columns):
        transform.append(block.cells, block.status, block.column, builder, 0)
        for row in np.flatnonzero(block.status).tolist():
            problems[first + row] = f"{block.origin.place(row)}: {explain(transform, block, row)[0]}"
        first += block.status.size
    return builder.take(), problems


def _are_dicts(table: object) -> TypeGuard[Sequence[Mapping[str, object]]]:
    return isinstance(table, list) and all(isinstance(row, Mapping) for row in table)
