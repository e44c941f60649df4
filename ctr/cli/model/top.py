"""`ctr model top`: the largest weights of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ctr.cli.model.info import ModelArgument
from ctr.cli.reporting import Report
from ctr.cli.tables import table

if TYPE_CHECKING:
    import pyarrow as pa

    from ctr.settings import Values

_ROWS = 20
_LONGEST = 100  # characters of a feature in a line


def top(
    report: Report,
    model: ModelArgument,
    rows: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many.")] = _ROWS,
    field: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only features of this field or cross.")
    ] = None,
    negative: Annotated[bool, typer.Option("--negative", help="Only weights below 0.")] = False,
    values: Values = None,
) -> None:
    """Show the largest weights of a model, whatever their sign, with the texts of their features.

    Texts are those of the dictionary of the data set that the model was trained on (`ctr features build
    --dictionary N`), and of the values in FILE. A feature that neither knows is shown by its slot alone; of
    features that share a slot, all that are known are shown. *Count* is how often the feature occurred in
    that data set.

    Example: `ctr model top model --rows 10 --negative`
    """
    from ctr.model import load_model
    from ctr.weights import largest

    loaded = load_model(model)
    weights = loaded.weights(values=values)
    found = largest(weights, rows, field=field, negative=negative)
    named = weights.num_rows - weights["feature"].null_count
    facts = {"model": loaded.id, "weights": weights.num_rows, "named": named, "rows": found.to_pylist()}
    lines = [*weight_lines(found), f"{named:,} of {weights.num_rows:,} weights have the text of a feature"]
    if named <= 1 and values is None:
        lines.append(
            "note: this model has no dictionary of features (see `ctr features build --dictionary`); "
            "--values FILE names those of its rows"
        )
    report(lines, facts)


def weight_lines(weights: pa.Table) -> list[str]:
    """A line per weight, under heads."""
    cells = [("weight", "count", "slot", "feature")]
    for each in weights.to_pylist():
        text, count = each["feature"] or "", each["count"]
        text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
        cells.append(
            (f"{each['weight']:+.4f}", "" if count is None else f"{count:,}", f"{each['slot']:,}", text)
        )
    return table(cells, ">>><")
