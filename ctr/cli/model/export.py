"""`ctr model export`: the weights of a model for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ctr.cli.model.info import ModelArgument
from ctr.cli.reporting import Report, stopping
from ctr.cli.tables import size, some
from ctr.outputs import printable, require_apart, require_no_part, require_writable

if TYPE_CHECKING:
    from ctr.settings import Values


def export(
    report: Report,
    model: ModelArgument,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="The weights go here: .parquet, .csv, .npz, .onnx or .vw. A file that is there is replaced.",
        ),
    ],
    format: Annotated[
        Literal["parquet", "csv", "npz", "onnx", "vw"] | None,
        typer.Option("--format", help="Of the file, whatever its suffix is."),
    ] = None,
    values: Values = None,
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
    require_no_part(out, model)
    loaded = load_model(model)
    require_exportable(loaded.spec, chosen, loaded.calibration)
    require_writable(out, make_folders=False)
    with stopping(f"{out} was not written."):
        table = loaded.weights(values)
        write(Exported(loaded.id, loaded.spec, table, loaded.calibration), out, chosen)
    count, length = table.num_rows, out.stat().st_size
    facts = {"model": loaded.id, "out": printable(out), "format": chosen, "weights": count, "bytes": length}
    said = f"wrote {some(count, 'weight')} of model {loaded.id} to {out} ({chosen}, {size(length)})"
    report([said], facts)
