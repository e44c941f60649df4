"""`too_good`: warnings of a model that ranks so well that something is likely wrong with its fields."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ctr.errors import CtrError

if TYPE_CHECKING:
    from ctr.features import FeatureSpec
    from ctr.features.inputs import InputFile
    from ctr.metrics import MetricSummary

_PERFECT = 0.999  # AUC
_SUSPECT = 0.95  # from here on, fields are looked at one by one
_ENOUGH = 20  # clicks, and rows without: fewer may be ranked perfectly by chance
_ROWS = 20_000  # that fields are looked at in: about 0.2 s for ten of them


def too_good(
    summary: MetricSummary, spec: FeatureSpec, inputs: Sequence[str | Path | InputFile], rows: str
) -> list[str]:
    """Warnings where the AUC on `rows`, such as "the hold-out", suggests that a field knows the label.

    Above 0.95 those fields are named that alone predict the label in the first rows of `inputs`, if these are
    raw. From 0.999 on there is a warning without such a field, too.
    """
    if min(summary.positives, summary.examples - summary.positives) < _ENOUGH or not summary.auc > _SUSPECT:
        return []
    warnings = [
        f"field {name!r} alone predicts the label (AUC {auc:.3f}): is it written only after the click?"
        for name, auc in _telling(spec, inputs).items()
    ]
    if not warnings and summary.auc >= _PERFECT:
        warnings = [
            f"an AUC of {summary.auc:.5f} on {rows} is too good to be true: is a field written only after the"
            " click, or are these rows among those of training?"
        ]
    return [f"{text} `ctr features check` looks at each field of raw rows" for text in warnings]


def _telling(spec: FeatureSpec, inputs: Sequence[str | Path | InputFile]) -> dict[str, float]:
    from ctr.features.inputs import StandardInput
    from ctr.features.inspect import telling_fields

    files = [each for each in inputs if not isinstance(each, str | Path | StandardInput)]
    if not files or len(files) < len(inputs):
        return {}
    try:
        return telling_fields(spec, files, _ROWS)
    except CtrError:  # it is about the job's result, which stands
        return {}
