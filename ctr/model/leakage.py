"""Data leakage: a model that is evaluated on rows it has learnt, and fields that know the label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctr.errors import CtrError
from ctr.features.dataset import read_manifest
from ctr.features.inputs import FileRows, file_digests

if TYPE_CHECKING:
    from ctr.features import FeatureSpec
    from ctr.features.inputs import InputFile
    from ctr.metrics import MetricSummary


DIGESTS = "input_digests"
"""The key of a manifest's entries for training, calibration and lineage."""

SEEN = "the model was {} on rows of {}, so these metrics are optimistic; evaluate on other rows"
"""A warning, to be filled in with `seen_rows` and the inputs."""


def input_digests(inputs: Sequence[str | Path | InputFile]) -> list[str]:
    """By what a source's `inputs` are recognised, also under another name. Raises DataError.

    That of a data set is of all that it holds; those of files: see `file_digests`, but for
    those of which some rows are left out.
    """
    folders = [each for each in inputs if isinstance(each, str | Path)]
    files = [
        each
        for each in inputs
        if not isinstance(each, str | Path) and (not isinstance(each, FileRows) or each.count() == each.rows)
    ]
    return [*(read_manifest(Path(folder)).digest for folder in folders), *file_digests(files)]


def seen_rows(manifest: Mapping[str, Any], digests: Sequence[str]) -> str | None:
    """How a model came to know rows of inputs with these digests: "trained" or "calibrated" on them.

    None if it is not known to have seen any, as where its manifest says nothing of digests.
    """
    training = manifest.get("training", {})
    trained = [each.get(DIGESTS) or () for each in (training, *training.get("lineage", ()))]
    if any(digest in known for known in trained for digest in digests):
        return "trained"
    calibrated = manifest.get("calibrated", {}).get(DIGESTS, ())
    return "calibrated" if any(digest in calibrated for digest in digests) else None


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
