"""`export`: writes the weights of a model as a file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ctr.errors import DataError
from ctr.features import FeatureSpec
from ctr.outputs import replace_file

if TYPE_CHECKING:
    import pyarrow as pa

    from ctr.model import Calibration, Model

FORMATS = ("parquet", "csv", "npz", "onnx", "vw")
"""The names of formats, which are also their suffixes."""


def format_of(out: Path, chosen: str | None) -> str:
    """The format `chosen`, or else that of the suffix of `out`. Raises DataError for an unknown format."""
    name = out.suffix.removeprefix(".") if chosen is None else chosen
    if name not in FORMATS:
        *most, last = FORMATS
        raise DataError(
            f"{out}: weights are written as {', '.join(most)} or {last}; choose one of these as the suffix, "
            "or with --format."
        )
    return name


def require_exportable(spec: FeatureSpec, format_: str, calibration: Calibration | None) -> None:
    """Raises DataError if the format cannot hold such a model, or a package for it is missing."""
    if format_ == "onnx":
        from ctr.exports.onnx_file import require_scorable

        require_scorable(spec)
    elif format_ == "vw":
        from ctr.exports.vw_file import require_held

        require_held(spec, calibration)


def export(model: Model, weights: pa.Table, out: Path, format_: str) -> None:
    """Write the file `out`, completely or not at all; it replaces an earlier file.

    `weights`: the result of `model.weights`, with any texts; `require_exportable` must accept the model.
    Raises DataError if the disk refuses, or if there are more weights than the format can hold.
    """
    with replace_file(out, "the weights") as draft:
        _write(model, weights, draft, format_)


def _write(model: Model, weights: pa.Table, path: Path, format_: str) -> None:
    if format_ == "parquet":
        from pyarrow import parquet

        parquet.write_table(weights, path)
    elif format_ == "csv":
        from pyarrow import csv

        csv.write_csv(weights, path)
    elif format_ == "npz":
        from scipy import sparse

        slots = weights["slot"].to_numpy().astype(np.int64)
        ends, shape = np.array([0, slots.size]), (1, 1 << model.spec.bits)
        row = sparse.csr_matrix((weights["weight"].to_numpy(), slots, ends), shape)
        with path.open("wb") as file:
            sparse.save_npz(file, row)
    elif format_ == "onnx":
        from ctr.exports.onnx_file import onnx_bytes

        path.write_bytes(onnx_bytes(model, weights))
    else:
        from ctr.exports.vw_file import vw_bytes

        path.write_bytes(vw_bytes(model, weights))
