"""Data leakage: a model that is evaluated on rows it has learnt, and fields that know the label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctr.errors import CtrError
from ctr.features.dataset import read_manifest
from ctr.features.inputs import InputFile, file_digests

if TYPE_CHECKING:
    from ctr.features import FeatureSpec
    from ctr.metrics import MetricSummary


DIGESTS = "input_digests"
"""The key of a manifest's entries for training, calibration and lineage."""

SEEN = "the model was {} on rows of {}, so these metrics are optimistic; evaluate on other rows"
"""A warning, to be filled in with `seen_rows` and the inputs."""


def input_digests(inputs: Sequence[str | Path | InputFile]) -> list[str]:
    """Digests by which a source's `inputs` are recognised, also under another name. Raises DataError.

    A data set's digest covers everything in it; for files see `file_digests`. Files of which some rows are
    left out have none.
    """
    folders = [each for each in inputs if not isinstance(each, InputFile)]
    files = [
        each
        for each in inputs
        if isinstance(each, InputFile)
        and (each.chosen_rows is None or each.chosen_rows.count() == each.chosen_rows.rows)
    ]
    return [*(read_manifest(Path(folder)).digest for folder in folders), *file_digests(files)]


def seen_rows(manifest: Mapping[str, Any], digests: Sequence[str]) -> str | None:
    """How a model has seen inputs with these digests: "trained" or "calibrated" on them.

    None if it is not known to have seen any, such as when its manifest has no digests.
    """
    training = manifest.get("training", {})
    trained = [each.get(DIGESTS) or () for each in (training, *training.get("lineage", ()))]
    if any(digest in known for known in trained for digest in digests):
        return "trained"
    calibrated = manifest.get("calibrated", {}).get(DIGESTS, ())
    return "calibrated" if any(digest in calibrated for digest in digests) else None


_PERFECT = 0.999  # AUC
_SUSPECT = 0.95  # above it, fields are checked one by one
_ENOUGH = 20  # rows of each label: fewer may be ranked perfectly by chance
_ROWS = 20_000  # in which fields are checked: about 0.2 s for ten of them


def too_good(
    summary: MetricSummary, spec: FeatureSpec, inputs: Sequence[str | Path | InputFile], rows: str
) -> list[str]:
    """Warnings if the AUC on `rows`, such as "the hold-out", suggests that a field knows the label.

    Above 0.95, they name the fields that predict the label by themselves in the first rows of `inputs`, if
    these are raw. From 0.999 on there is a warning in any case.
    """
    if min(summary.positives, summary.examples - summary.positives) < _ENOUGH or not summary.auc > _SUSPECT:
        return []
    warnings = [
        f"field {name!r} alone predicts the label (AUC {auc:.3f}): is it written only after the click?"
        for name, auc in _fields_that_predict(spec, inputs).items()
    ]
    if not warnings and summary.auc >= _PERFECT:
        warnings = [
            f"an AUC of {summary.auc:.5f} on {rows} is too good to be true: is a field written only after the"
            " click, or are these rows among those of training?"
        ]
    return [f"{text} `ctr features check` looks at each field of raw rows" for text in warnings]


def _fields_that_predict(spec: FeatureSpec, inputs: Sequence[str | Path | InputFile]) -> dict[str, float]:
    from ctr.features.inputs import StandardInput
    from ctr.features.inspect import telling_fields

    files = [each for each in inputs if not isinstance(each, str | Path | StandardInput)]
    if not files or len(files) < len(inputs):
        return {}
    try:
        return telling_fields(spec, files, _ROWS)
    except CtrError:  # the job has succeeded: no reason to fail now
        return {}
