"""`ctr model export`: the weights of a model for other programs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ctr.cli.model.info import ModelArgument
from ctr.cli.options import JsonOption, ValuesOption
from ctr.cli.reporting import report, stopping
from ctr.cli.tables import size, some
from ctr.outputs import printable, require_apart, require_no_part, require_writable


class Format(StrEnum):
    """Of a file of weights."""

    PARQUET = "parquet"
    CSV = "csv"
    NPZ = "npz"
    ONNX = "onnx"
    VW = "vw"


def export(
    model: ModelArgument,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="The weights go here: .parquet, .csv, .npz, .onnx or .vw. A file that is there is replaced.",
            show_default=False,
        ),
    ],
    format: Annotated[
        Format | None, typer.Option("--format", help="Of the file, whatever its suffix is.")
    ] = None,
    values: ValuesOption = None,
    json: JsonOption = None,
) -> None:
    """Write the weights of a model to a file that other programs read.

    *parquet* and *csv* are tables of slot, weight, feature and count, as `ctr model top` shows them; *npz* is
    a sparse matrix of one row (`scipy.sparse.load_npz`). *onnx* scores hashed examples, and *vw* is a model
    file of Vowpal Wabbit that does.

    Example: `ctr model export model --out weights.parquet`
    """
    from ctr.model import load_model
    from ctr.weights import Exported, require_exportable
    from ctr.weights import export as write
    from ctr.weights import format_of as choose

    chosen = choose(out, format)
    require_apart(out, [values] if values else [])
    for place in (out, json):
        require_no_part(place, model)
    loaded = load_model(model)
    require_exportable(loaded.spec, chosen, loaded.calibration)
    require_writable(out, make_folders=False)
    with stopping(f"{out} was not written."):
        table = loaded.weights(values)
        write(Exported(loaded.id, loaded.spec, table, loaded.calibration), out, chosen)
    count, length = table.num_rows, out.stat().st_size
    facts = {"model": loaded.id, "out": printable(out), "format": chosen, "weights": count, "bytes": length}
    said = f"wrote {some(count, 'weight')} of model {loaded.id} to {out} ({chosen}, {size(length)})"
    report([said], facts, json)
