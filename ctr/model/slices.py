"""`Slices`: the metrics of examples by what stands in a column of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr.metrics import Metrics
from ctr.optimizers import Float32

VALUES_KEPT = 64
"""Values of a column that have metrics of their own. Each takes up to 6 MB."""


@dataclass(slots=True)
class Slices:
    """Of one column. The first values that are met get metrics of their own; the rest share theirs.

    Of the values that are new in a batch the most frequent come first, so that those which matter are among
    the first whatever the column has.
    """

    by_value: dict[str | None, Metrics] = field(default_factory=dict)
    """None: the value is missing."""
    others: Metrics = field(default_factory=Metrics)
    """Of the examples with other values."""

    def add(self, texts: pa.StringArray, margins: Float32, labels: Float32, weights: Float32 | None) -> None:
        """Count examples, of which `texts` are the values."""
        coded = texts.dictionary_encode("encode")
        values: list[str | None] = coded.dictionary.to_pylist()
        # Not by `to_numpy`, which loads pandas, where that is: 0.3 s.
        codes = np.frombuffer(coded.indices.buffers()[1], np.int32, len(coded))
        kept = self._kept(values, np.bincount(codes, minlength=len(values)))

        def count(metrics: Metrics, rows: NDArray[np.intp]) -> None:
            metrics.add(margins[rows], labels[rows], None if weights is None else weights[rows])

        of_kept = np.flatnonzero(kept[codes])
        of_kept = of_kept[np.argsort(codes[of_kept], kind="stable")]
        for rows in np.split(of_kept, np.flatnonzero(np.diff(codes[of_kept])) + 1) if of_kept.size else ():
            count(self.by_value[values[codes[rows[0]]]], rows)
        if of_kept.size < codes.size:
            count(self.others, np.flatnonzero(~kept[codes]))

    def _kept(self, values: Sequence[str | None], counts: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of these values have metrics of their own, with those that get them now."""
        kept = np.array([value in self.by_value for value in values], np.bool_)
        new = np.flatnonzero(~kept)
        new = new[np.argsort(-counts[new], kind="stable")][: VALUES_KEPT - len(self.by_value)]
        for code in new.tolist():
            self.by_value[values[code]] = Metrics()
        kept[new] = True
        return kept

    def largest(self, most: int) -> tuple[dict[str | None, Metrics], Metrics]:
        """Those with the most examples, and all the rest together."""
        ordered = sorted(self.by_value.items(), key=lambda each: -each[1].examples)
        rest = Metrics()
        for metrics in (self.others, *(metrics for _, metrics in ordered[most:])):
            rest.merge(metrics)
        return dict(ordered[:most]), rest

    def to_json(self) -> dict[str, Any]:
        """Every value that is kept, the most frequent first."""
        kept, rest = self.largest(VALUES_KEPT)
        return {
            "values_kept": VALUES_KEPT,
            "values": [{"value": value, **_facts(metrics)} for value, metrics in kept.items()],
            "others": _facts(rest) if rest.examples else None,
        }


def _facts(metrics: Metrics) -> Mapping[str, Any]:
    facts = metrics.summary().to_json()
    return {name: value for name, value in facts.items() if name != "reliability"}
