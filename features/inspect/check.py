"""`check`: what a spec finds in raw data, field by field, and possible problems."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features.batches import Batch, sorted_by_label
from ctr.features.inputs import InputFile, input_files
from ctr.features.inspect.time_order import TimeOrder, time_order
from ctr.features.raw import RawSource, fit
from ctr.features.readers import SKIP, BadRows, open_reader
from ctr.features.spec import SERVED, FeatureSpec, InputField, column_of
from ctr.features.transform import Transform
from ctr.features.windows import Windows

_BITS = 40  # so that values hardly collide
_BLOCK = 65_536
_MISSING_MOST = 0.99
_ONE_VALUE = 0.999  # of the rows
_TELLS = 0.95  # AUC
_UNSEEN = 0.5
_ENOUGH = 1_000  # rows for warnings about shares, and values of a field that may be an id


@dataclass(slots=True)
class FieldCheck:
    """Figures of a field; shares are of all rows."""

    name: str
    column: str
    type: str
    missing: float
    """Share of rows without a value."""
    distinct: int
    """The number of distinct features of its values."""
    most_frequent: float
    """Share of the most frequent feature."""
    unseen: float
    """Share of the second half's values that do not occur in the first half."""
    auc: float
    """How well its values' click rates in the first half rank the second half: 0.5 not at all, 1 perfectly.
    NaN unless there are rows with and without a click."""
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Check:
    """What a spec finds in raw data."""

    rows: int
    bad_rows: int
    bad_examples: list[str]
    positives: int
    sorted_by_label: bool
    fields: list[FieldCheck]
    times: list[TimeOrder]
    """For each column that time fields or windows read."""
    unused: list[str]
    """Columns of the first file that the spec does not mention."""
    layout: list[str]
    """What does not fit the spec's source."""

    @property
    def warnings(self) -> list[str]:
        """Warnings about the data, then about its order, then about fields."""
        warnings = list(self.layout)
        warnings += [text for each in self.times for text in each.warnings]
        warnings += [f"field {each.name!r}: {text}" for each in self.fields for text in each.warnings]
        if self.positives in (0, self.rows):
            label = "1" if self.positives else "0"
            warnings.insert(0, f"all {self.rows:,} labels are {label}: nothing can be learnt")
        if self.sorted_by_label:
            warnings.insert(0, "the rows look sorted by label; `ctr features build --shuffle 0` mixes them")
        return warnings

    def to_json(self) -> dict[str, Any]:
        """All of it by name, as JSON values."""
        facts = asdict(self) | {"warnings": self.warnings}
        for each in facts["fields"]:
            each["auc"] = None if np.isnan(each["auc"]) else each["auc"]
        for entry, each in zip(facts["times"], self.times, strict=True):
            entry["in_order"] = each.in_order
        return facts


def check(spec: FeatureSpec, inputs: Sequence[str | Path | InputFile], rows: int) -> Check:
    """Checks the first `rows` rows against `spec`, which is first fitted on all rows if necessary.

    Raises DataError if a column is missing, or there is no good row; bad rows are counted.
    """
    if not spec.fields:
        raise DataError(f"{spec.source.format} data carries its own features: there are no fields to check.")
    files = input_files(inputs)
    spec = fit(spec, files)
    times, unused = time_order(spec, files, rows), _unused(spec, files[0])
    single = [each for each in spec.fields if not each.several]
    several = [each for each in spec.fields if each.several]
    passes = [_Pass(spec, single, files, rows)] if single else []
    passes += [_Pass(spec, [each], files, rows) for each in several]
    checked = {
        each.name: _check_field(each, *column, pass_.labels)
        for pass_ in passes
        for each, column in zip(pass_.fields, pass_.columns(), strict=True)
    }
    first = passes[0]
    alone = len(passes) == 1 and not spec.windows  # the pass has then met every bad row
    bad_rows = first.source.bad_rows if alone else _bad_rows(spec, files, rows)
    return Check(
        rows=len(first.labels),
        bad_rows=bad_rows.count,
        bad_examples=list(bad_rows.examples),
        positives=int(first.labels.sum()),
        sorted_by_label=sorted_by_label(first.labels, float(first.labels.mean())),
        fields=[checked[each.name] for each in spec.fields],
        times=times,
        unused=unused,
        layout=first.source.layout_warnings(),
    )


def _bad_rows(spec: FeatureSpec, files: Sequence[InputFile], rows: int) -> BadRows:
    """The rows that building a data set would reject: for all fields, crosses and windows together."""
    windows = Windows(spec) if spec.windows else None
    source = RawSource(spec, files, on_bad_rows=SKIP, windows=windows)
    for _ in source.batches(_BLOCK, 0, rows):
        pass
    return source.bad_rows


def telling_fields(spec: FeatureSpec, files: Sequence[InputFile], rows: int) -> dict[str, float]:
    """The AUC of fields that predict the label on their own, so that `check` would warn of them.

    Checks fields with one value per row, in the first `rows` rows, with a fitted spec. Raises DataError.
    """
    single = [each for each in spec.fields if not each.several]
    if not single:
        return {}
    first = _Pass(spec, single, files, rows)
    return {
        each.name: auc
        for each, (_, values, _) in zip(first.fields, first.columns(), strict=True)
        if (auc := _auc(values, first.labels)) > _TELLS
    }


class _Pass:
    """The first rows, with some of the fields."""

    def __init__(
        self, spec: FeatureSpec, fields: Sequence[InputField], files: Sequence[InputFile], rows: int
    ) -> None:
        own = tuple(each.model_copy(update={"missing": "feature"}) for each in fields)
        alone = spec.of_fields(own).model_copy(
            update={"crosses": (), "groups": {}, "bits": _BITS, "bias": False}
        )
        self.fields = fields
        self.source = RawSource(alone, files, on_bad_rows=SKIP)
        self._batches = list(self.source.batches(_BLOCK, 0, rows))
        if not self._batches:
            raise DataError(
                f"{files[0]}: there is no good row; {'; '.join(self.source.bad_rows.examples[:1])}."
            )
        self.labels = np.concatenate([_labels(batch) for batch in self._batches])
        transform = Transform(alone, with_label=False)
        self._missing = transform.apply_rows([{}]).slots.astype(np.uint64)

    def columns(self) -> list[tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.bool_]]]:
        """For each field: int64[k], the rows of its features; uint64[k], the features; whether missing."""
        slots = np.concatenate([batch.slots.astype(np.uint64) for batch in self._batches])
        counts = np.concatenate([np.diff(batch.indptr) for batch in self._batches])
        rows = np.repeat(np.arange(counts.size), counts)
        if self.fields[0].several:
            return [(rows, slots, slots == self._missing[0])]
        table = slots.reshape(counts.size, len(self.fields))
        each_row = np.arange(counts.size)
        return [(each_row, table[:, f], table[:, f] == self._missing[f]) for f in range(len(self.fields))]


def _labels(batch: Batch) -> NDArray[np.float32]:
    assert batch.labels is not None
    return batch.labels


def _check_field(
    which: InputField,
    rows: NDArray[np.int64],
    values: NDArray[np.uint64],
    missing: NDArray[np.bool_],
    labels: NDArray[np.float32],
) -> FieldCheck:
    count = labels.size
    distinct, ids = np.unique(values[~missing], return_inverse=True)
    late = rows[~missing] >= count // 2
    seen = np.zeros(distinct.size, np.bool_)
    seen[ids[~late]] = True
    counts = np.bincount(ids, minlength=distinct.size)
    checked = FieldCheck(
        name=which.name,
        column=column_of(which),
        type=which.type,
        missing=1 - np.unique(rows[~missing]).size / count,
        distinct=int(distinct.size),
        most_frequent=float(counts.max(initial=0) / count),
        unseen=float((~seen[ids[late]]).mean()) if late.any() else 0.0,
        auc=float("nan") if which.several else _auc(values, labels),
    )
    return replace(checked, warnings=_warnings(checked, count))


def _auc(values: NDArray[np.uint64], labels: NDArray[np.float32]) -> float:
    """How well smoothed click rates by value, from the first half, rank the second half."""
    half = labels.size // 2
    positive = labels[half:] > 0
    if half == 0 or positive.all() or not positive.any():
        return float("nan")
    distinct, ids = np.unique(values, return_inverse=True)
    clicks = np.bincount(ids[:half], labels[:half], distinct.size)
    views = np.bincount(ids[:half], minlength=distinct.size)
    rates = (clicks + labels[:half].mean()) / (views + 1)
    _, order, ties = np.unique(rates[ids[half:]], return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[order]
    pos = int(positive.sum())
    return float((ranks[positive].sum() - pos * (pos + 1) / 2) / (pos * (positive.size - pos)))


def _warnings(checked: FieldCheck, rows: int) -> list[str]:
    if checked.distinct == 0:
        return ["it has a value in no row; is it the right column?"]
    warnings = []
    if checked.missing > _MISSING_MOST:
        warnings.append(f"it has a value in {1 - checked.missing:.2%} of the rows only")
    if checked.distinct == 1 and checked.missing == 0:
        warnings.append(
            "all values become one feature, which says nothing; leave it out, or change the transform"
        )
    elif checked.most_frequent > _ONE_VALUE and rows >= _ENOUGH:
        warnings.append(f"{checked.most_frequent:.2%} of the rows have one and the same feature")
    if checked.auc > _TELLS:
        warnings.append(
            f"it alone predicts the label (AUC {checked.auc:.3f}): is it written only after the click?"
        )
    if checked.unseen > _UNSEEN and checked.distinct >= _ENOUGH:
        warnings.append(
            f"{checked.unseen:.0%} of the second half's values are not in the first, so little is learnt of"
            " them; is it an id? Buckets, a prefix or min_count help"
        )
    return warnings


def _unused(spec: FeatureSpec, first: InputFile) -> list[str]:
    with closing(open_reader(first, spec, "required")) as reader:
        columns = list(dict.fromkeys(reader.columns))
    used = {*spec.columns, spec.label, spec.weight, *spec.source.ignore, SERVED}
    return [name for name in columns if name not in used]
