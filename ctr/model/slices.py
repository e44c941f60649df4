"""`Slices`: the metrics of examples by what stands in a column of their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.learn import Float32
from ctr.metrics import Metrics

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
        codes = coded.indices.to_numpy()
        counts = np.bincount(codes, minlength=len(values))
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(counts)
        shared = []
        for code in np.argsort(-counts, kind="stable").tolist():
            rows = order[ends[code] - counts[code] : ends[code]]
            metrics = self._metrics_of(values[code])
            if metrics is None:
                shared.append(rows)
            else:
                metrics.add(margins[rows], labels[rows], None if weights is None else weights[rows])
        if shared:
            rows = np.concatenate(shared)
            self.others.add(margins[rows], labels[rows], None if weights is None else weights[rows])

    def _metrics_of(self, value: str | None) -> Metrics | None:
        if value not in self.by_value and len(self.by_value) < VALUES_KEPT:
            self.by_value[value] = Metrics()
        return self.by_value.get(value)

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
