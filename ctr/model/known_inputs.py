"""`input_digests` and `seen_rows`: whether a model is evaluated on rows that it was made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctr.features.dataset import read_manifest
from ctr.features.inputs import FileRows, file_digests

if TYPE_CHECKING:
    from ctr.features.inputs import InputFile

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
