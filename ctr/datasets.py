"""Small data sets for experiments: synthetic rows of several kinds, the same every time.

>>> import ctr
>>> rows, spec = ctr.datasets.ads(1_000)
>>> rows.column_names
['click', 'site', 'device', 'price']
>>> ctr.train(rows, spec).evaluate(rows).examples
1000
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features import FeatureSpec, load_spec, parse_spec
from ctr.synth import AD_COLUMNS, INSTALL_COLUMNS, ad_rows, install_rows, sparse_rows, write_click_log

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

ROWS = 5_000

_ADS = """
version: 1
source: {format: parquet}
label: click
bits: 18
fields:
  - {name: site, type: category}
  - {name: device, type: category}
  - {name: price, type: number, transform: log, missing: feature}
crosses:
  - {name: site x device, of: [site, device]}
"""
_INSTALLS = """
version: 1
source: {format: parquet, ignore: [attributed_time]}
label: is_attributed
bits: 18
fields:
  - {name: ip, type: category}
  - {name: app, type: category}
  - {name: device, type: category}
  - {name: os, type: category}
  - {name: channel, type: category}
  - {name: hour, column: click_time, type: time, transform: hour}
crosses: [app * channel]
"""


class Dataset(NamedTuple):
    """Rows, and a spec for their features: `ctr.train(*ctr.datasets.ads())`."""

    rows: pa.Table
    spec: FeatureSpec


class SparseDataset(NamedTuple):
    """Examples as scikit-learn takes them: `ctr.FTRLClassifier().fit(*ctr.datasets.sparse())`."""

    X: csr_matrix[Any]
    """float32 of shape (rows, 16384): ones."""
    y: NDArray[np.int8]
    """int8[rows]: 0 or 1."""


def ads(rows: int = ROWS) -> Dataset:
    """Impressions of advertisements on 500 sites: categories of many and of few values, a number, a cross.

    About one in six is a click. One price in ten is missing.
    """
    return Dataset(_table(AD_COLUMNS, ad_rows(_positive(rows))), parse_spec(_ADS, "ads"))


def criteo(rows: int = ROWS) -> Dataset:
    """Rows in the columns of Criteo's data: `label`, 13 numbers I1-I13, 26 hashed categories C1-C26.

    About one in four is a click. Some values are missing, and most categories are rare. `ctr synth` writes
    any number of these rows.
    """
    from pyarrow import csv

    spec = load_spec("criteo")
    texts = {name: pa.string() for name in spec.source.columns if name.startswith("C")}
    with tempfile.TemporaryDirectory(prefix="ctr-criteo-") as folder:
        path = Path(folder, "clicks.tsv")
        write_click_log(path, _positive(rows))
        table = csv.read_csv(
            path,
            csv.ReadOptions(column_names=spec.source.columns),
            csv.ParseOptions(delimiter="\t"),
            csv.ConvertOptions(column_types=texts, null_values=[""], strings_can_be_null=True),
        )
    return Dataset(table, spec)


def installs(rows: int = ROWS) -> Dataset:
    """Clicks on advertisements of apps during a day, in order, in the columns of TalkingData's challenge.

    About one in fifty leads to an installation. Most clicks come from a few addresses without installations.
    """
    spec, table = parse_spec(_INSTALLS, "installs"), _table(INSTALL_COLUMNS, install_rows(_positive(rows)))
    for name in ("ip", "app", "device", "os", "channel"):  # categories are texts
        table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.string()))
    return Dataset(table, spec)


def sparse(rows: int = ROWS) -> SparseDataset:
    """A sparse matrix of heavy-tailed ones, about 18 per row, and labels, three in ten of which are 1."""
    return SparseDataset(*sparse_rows(_positive(rows)))


def _positive(rows: int) -> int:
    if not (isinstance(rows, int) and rows >= 1):
        raise DataError(f"rows is {rows!r:.80}: give a whole number of at least 1.")
    return rows


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> pa.Table:
    return pa.table(dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True)))
