"""`ctr model top` and `ctr model export`: the weights of a model, for people and for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ctr.cli.model.info import ModelArgument
from ctr.cli.reporting import Report, stopping
from ctr.cli.tables import size, some, table
from ctr.outputs import printable, require_apart, require_no_part, require_writable

if TYPE_CHECKING:
    import pyarrow as pa

    from ctr.settings import Values

_LONGEST = 100  # characters of a feature in a line


def top(
    report: Report,
    model: ModelArgument,
    rows: Annotated[int, typer.Option(min=1, max=1_000_000, help="Number of weights.")] = 20,
    field: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only features of this field or cross.")
    ] = None,
    negative: Annotated[bool, typer.Option("--negative", help="Only weights below 0.")] = False,
    values: Values = None,
) -> None:
    """Show the largest weights of a model, whatever their sign, with the texts of their features.

    Texts come from the dictionary of the data set that the model was trained on (`ctr features build
    --dictionary N`), and from the values in FILE. An unknown feature is shown by its slot. If features share
    a slot, all known ones are shown. *Count* is how often the feature occurred in that data set.

    Example: `ctr model top model --rows 10 --negative`
    """
    from ctr.model import load_model
    from ctr.weights import largest

    loaded = load_model(model)
    weights = loaded.weights(values=values)
    shown = largest(weights, rows, field=field, negative=negative)
    known = weights.num_rows - weights["feature"].null_count
    facts = {"model": loaded.id, "weights": weights.num_rows, "named": known, "rows": shown.to_pylist()}
    lines = [*_weight_lines(shown), f"{known:,} of {weights.num_rows:,} weights have the text of a feature"]
    if known <= 1 and values is None:
        lines.append(
            "note: this model has no dictionary of features (see `ctr features build --dictionary`); "
            "--values FILE gives the texts of its rows"
        )
    report(lines, facts)


def export(
    report: Report,
    model: ModelArgument,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Output file: .parquet, .csv, .npz, .onnx or .vw. An existing file is replaced.",
        ),
    ],
    format: Annotated[
        Literal["parquet", "csv", "npz", "onnx", "vw"] | None,
        typer.Option("--format", help="Format of the file, regardless of its suffix."),
    ] = None,
    values: Values = None,
) -> None:
    """Write the weights of a model to a file that other programs read.

    *parquet* and *csv* are tables of slot, weight, feature and count, as `ctr model top` shows them; *npz* is
    a sparse matrix of one row (`scipy.sparse.load_npz`). *onnx* scores hashed examples, and *vw* is a model
    file of Vowpal Wabbit that does.

    Example: `ctr model export model --out weights.parquet`
    """
    from ctr.exports import export as write
    from ctr.exports import format_of, require_exportable
    from ctr.model import load_model

    chosen = format_of(out, format)
    require_apart(out, [values] if values else [])
    require_no_part(out, model)
    loaded = load_model(model)
    require_exportable(loaded.spec, chosen, loaded.calibration)
    require_writable(out, make_folders=False)
    with stopping(f"{out} was not written."):
        weights = loaded.weights(values)
        write(loaded, weights, out, chosen)
    count, length = weights.num_rows, out.stat().st_size
    facts = {"model": loaded.id, "out": printable(out), "format": chosen, "weights": count, "bytes": length}
    line = f"wrote {some(count, 'weight')} of model {loaded.id} to {out} ({chosen}, {size(length)})"
    report([line], facts)


def _weight_lines(weights: pa.Table) -> list[str]:
    """A line per weight, below a header."""
    cells = [("weight", "count", "slot", "feature")]
    for each in weights.to_pylist():
        text, count = each["feature"] or "", each["count"]
        text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
        cells.append(
            (f"{each['weight']:+.4f}", "" if count is None else f"{count:,}", f"{each['slot']:,}", text)
        )
    return table(cells, ">>><")
