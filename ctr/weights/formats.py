"""`export`: the weights of a model as a file that other programs read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ctr.errors import DataError
from ctr.features import FeatureSpec
from ctr.outputs import replace_file
from ctr.weights.table import Calibration, Exported

FORMATS = ("parquet", "csv", "npz", "onnx", "vw")
"""By their names, which are their suffixes."""


def format_of(out: Path, wanted: str | None) -> str:
    """The format that is `wanted`, or else that of the suffix of `out`. Raises DataError for another one."""
    name = out.suffix.removeprefix(".") if wanted is None else wanted
    if name not in FORMATS:
        *most, last = FORMATS
        raise DataError(
            f"{out}: weights are written as {', '.join(most)} or {last}; choose one of these as the suffix, "
            "or with --format."
        )
    return name


def require_exportable(spec: FeatureSpec, format_: str, calibration: Calibration | None) -> None:
    """Raise DataError if a file of this format cannot hold such a model, or a package for it is missing."""
    if format_ == "onnx":
        from ctr.weights.onnx_file import require_scorable

        require_scorable(spec)
    elif format_ == "vw":
        from ctr.weights.vw_file import require_held

        require_held(spec, calibration)


def export(exported: Exported, out: Path, format_: str) -> None:
    """Write the file `out`, whole or not at all; one that was there is replaced.

    Raises DataError as `require_exportable`, and when the disk refuses.
    """
    require_exportable(exported.spec, format_, exported.calibration)
    try:
        with replace_file(out) as draft:
            _write(exported, draft, format_)
    except OSError as error:
        raise DataError(f"{out}: the weights could not be written ({error}).") from error


def _write(exported: Exported, path: Path, format_: str) -> None:
    if format_ == "parquet":
        from pyarrow import parquet

        parquet.write_table(exported.weights, path)
    elif format_ == "csv":
        from pyarrow import csv

        csv.write_csv(exported.weights, path)
    elif format_ == "npz":
        from scipy import sparse

        slots, weights = (exported.weights[name].to_numpy() for name in ("slot", "weight"))
        shape = 1, 1 << exported.spec.bits
        row = sparse.csr_matrix((weights, slots.astype(np.int64), np.array([0, slots.size])), shape)
        with path.open("wb") as file:
            sparse.save_npz(file, row)
    elif format_ == "onnx":
        from ctr.weights.onnx_file import onnx_bytes

        path.write_bytes(onnx_bytes(exported))
    else:
        from ctr.weights.vw_file import vw_bytes

        path.write_bytes(vw_bytes(exported))
