"""`check`: what a spec finds in raw data, field by field, and what looks wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features.batches import Batch
from ctr.features.first_pass import fit
from ctr.features.inputs import InputFile, input_files
from ctr.features.inspect.time_order import TimeOrder, time_order
from ctr.features.readers import BadRows, open_reader
from ctr.features.source import RawSource
from ctr.features.spec import FeatureSpec, InputField, column_of, columns_of
from ctr.features.transform import Transform
from ctr.features.windows import Windows

_BITS = 40  # in which values do not collide
_BLOCK = 65_536
_MISSING_MOST = 0.99
_ONE_VALUE = 0.999  # of the rows
_TELLS = 0.95  # AUC
_UNSEEN = 0.5
_ENOUGH = 1_000  # rows for what is said of shares, and values of a field that may be an id


@dataclass(slots=True)
class FieldCheck:
    """What is known of a field; shares are of the rows."""

    name: str
    column: str
    type: str
    missing: float
    """Share without a value."""
    distinct: int
    """Features that its values become."""
    most_frequent: float
    """Share of the most frequent one."""
    unseen: float
    """Share of the second half of the rows whose value the first half does not have."""
    auc: float
    """How well its values' click rates in the first half rank the second half: 0.5 not at all, 1 perfectly.
    Not a number without both kinds of rows."""
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Check:
    """What a spec finds in raw data."""

    rows: int
    bad_rows: int
    bad_examples: list[str]
    positives: int
    fields: list[FieldCheck]
    times: list[TimeOrder]
    """Of each column that time fields or windows read."""
    unused: list[str]
    """Columns of the first file that the spec says nothing of."""
    layout: list[str]
    """What does not fit the spec's source."""

    @property
    def warnings(self) -> list[str]:
        """About the data, then about its order, then about fields."""
        found = list(self.layout)
        found += [warning for each in self.times for warning in each.warnings]
        found += [f"field {each.name!r}: {warning}" for each in self.fields for warning in each.warnings]
        if self.positives in (0, self.rows):
            found.insert(
                0, f"all {self.rows:,} labels are {'1' if self.positives else '0'}: nothing can be learnt"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """Everything by name, as JSON can hold it."""
        facts = asdict(self) | {"warnings": self.warnings}
        for each in facts["fields"]:
            each["auc"] = None if np.isnan(each["auc"]) else each["auc"]
        for told, each in zip(facts["times"], self.times, strict=True):
            told["in_order"] = each.in_order
        return facts


def check(spec: FeatureSpec, inputs: Sequence[str | Path | InputFile], rows: int) -> Check:
    """Look at the first `rows` of the inputs through `spec`; if that has to learn, from all of them.

    Raises DataError when a column is not there, or there is no good row; rows that are bad are counted.
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
    found: dict[str, FieldCheck] = {}
    for one in passes:
        for each, (of_rows, values, missing) in zip(one.fields, one.columns(), strict=True):
            found[each.name] = _check_field(each, of_rows, values, missing, one.labels)
    first = passes[0]
    alone = len(passes) == 1 and not spec.windows  # then it has met every bad row
    bad_rows = first.source.bad_rows if alone else _bad_rows(spec, files, rows)
    return Check(
        rows=len(first.labels),
        bad_rows=bad_rows.count,
        bad_examples=list(bad_rows.examples),
        positives=int(first.labels.sum()),
        fields=[found[each.name] for each in spec.fields],
        times=times,
        unused=unused,
        layout=first.source.layout_warnings(),
    )


def _bad_rows(spec: FeatureSpec, files: Sequence[InputFile], rows: int) -> BadRows:
    """Those that building a data set would refuse: of all fields, crosses and windows together."""
    windows = Windows(spec) if spec.windows else None
    source = RawSource(spec, files, on_bad_rows="skip", windows=windows)
    for _ in source.batches(_BLOCK, 0, rows):
        pass
    return source.bad_rows


def telling_fields(spec: FeatureSpec, files: Sequence[InputFile], rows: int) -> dict[str, float]:
    """Of the fields with one value in a row those that `check` would warn of as they know the label, by AUC.

    Only the first `rows` are looked at, through a spec that has learnt what it has to. Raises DataError.
    """
    single = [each for each in spec.fields if not each.several]
    if not single:
        return {}
    one = _Pass(spec, single, files, rows)
    found = {
        each.name: _auc(values, one.labels)
        for each, (_, values, _) in zip(one.fields, one.columns(), strict=True)
    }
    return {name: auc for name, auc in found.items() if auc > _TELLS}


class _Pass:
    """The first rows, through some of the fields."""

    def __init__(
        self, spec: FeatureSpec, fields: Sequence[InputField], files: Sequence[InputFile], rows: int
    ) -> None:
        told = [each.model_copy(update={"missing": "feature"}) for each in fields]
        update = {
            "fields": tuple(told),
            "crosses": (),
            "groups": {},
            "windows": (),
            "bits": _BITS,
            "bias": False,
        }
        alone = spec.model_copy(update=update)
        self.fields = fields
        self.source = RawSource(alone, files, on_bad_rows="skip")
        self._batches = list(self.source.batches(_BLOCK, 0, rows))
        if not self._batches:
            raise DataError(
                f"{files[0]}: there is no good row; {'; '.join(self.source.bad_rows.examples[:1])}."
            )
        self.labels = np.concatenate([_labels(batch) for batch in self._batches])
        transform = Transform(alone, with_label=False)
        self._missing = transform.apply_rows([{}]).slots.astype(np.uint64)

    def columns(self) -> list[tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.bool_]]]:
        """Of each field: int64[k], the rows of its features; uint64[k], which they are; whether missing."""
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
    there, ids = np.unique(values[~missing], return_inverse=True)
    late = rows[~missing] >= count // 2
    seen = np.zeros(there.size, np.bool_)
    seen[ids[~late]] = True
    counts = np.bincount(ids, minlength=there.size)
    found = FieldCheck(
        name=which.name,
        column=column_of(which),
        type=which.type,
        missing=1 - np.unique(rows[~missing]).size / count,
        distinct=int(there.size),
        most_frequent=float(counts.max(initial=0) / count),
        unseen=float((~seen[ids[late]]).mean()) if late.any() else 0.0,
        auc=float("nan") if which.several else _auc(values, labels),
    )
    found.warnings = _warnings(found, count)
    return found


def _auc(values: NDArray[np.uint64], labels: NDArray[np.float32]) -> float:
    """How well click rates by value, of the first half and smoothed, rank the second half."""
    half = labels.size // 2
    positive = labels[half:] > 0
    if half == 0 or positive.all() or not positive.any():
        return float("nan")
    there, ids = np.unique(values, return_inverse=True)
    clicks = np.bincount(ids[:half], labels[:half], there.size)
    views = np.bincount(ids[:half], minlength=there.size)
    rates = (clicks + labels[:half].mean()) / (views + 1)
    _, order, ties = np.unique(rates[ids[half:]], return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[order]
    pos = int(positive.sum())
    return float((ranks[positive].sum() - pos * (pos + 1) / 2) / (pos * (positive.size - pos)))


def _warnings(found: FieldCheck, rows: int) -> list[str]:
    if found.distinct == 0:
        return ["it has a value in no row; is it the right column?"]
    told = []
    if found.missing > _MISSING_MOST:
        told.append(f"it has a value in {1 - found.missing:.2%} of the rows only")
    if found.distinct == 1 and found.missing == 0:
        told.append(
            "all values become one feature, which says nothing; leave it out, or change the transform"
        )
    elif found.most_frequent > _ONE_VALUE and rows >= _ENOUGH:
        told.append(f"{found.most_frequent:.2%} of the rows have one and the same feature")
    if found.auc > _TELLS:
        told.append(f"it alone predicts the label (AUC {found.auc:.3f}): is it written only after the click?")
    if found.unseen > _UNSEEN and found.distinct >= _ENOUGH:
        told.append(
            f"{found.unseen:.0%} of the second half's values are not in the first, so little is learnt of"
            " them; is it an id? Buckets, a prefix or min_count help"
        )
    return told


def _unused(spec: FeatureSpec, first: InputFile) -> list[str]:
    with closing(open_reader(first, spec, "required")) as reader:
        columns = list(dict.fromkeys(reader.columns))
    used = {column for each in spec.fields for column in columns_of(each)}
    used |= {column for each in spec.windows for column in (each.time, *each.key)}
    used |= {spec.label or "", spec.weight or "", *spec.source.ignore}
    return [name for name in columns if name not in used]
