"""`suggest_crosses`: from raw files and their spec to the crosses that are worth having."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ctr.crosses.crossed import with_crossed_fields
from ctr.crosses.rows import candidate_fields, read_rows, spec_of_values
from ctr.crosses.search import MOST_CROSSES, Chosen, find_crosses
from ctr.errors import DataError
from ctr.features import FeatureSpec, RawSource, fit, input_files, is_dataset
from ctr.features.threads import Threads

MOST_ROWS = 1_000_000
_SLOTS_PER_FEATURE = 25  # one of so many features shares its slot with another
_MOST_BITS = 26  # 2**26 slots take 512 MiB
_READING = 0.2  # of the time


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The crosses found, and what they bring."""

    spec: FeatureSpec
    """As it was."""
    chosen: tuple[Chosen, ...]
    """In the order in which they were taken."""
    rows: int
    """That were looked at."""
    rows_in_all: int
    candidates: int
    """Crosses that were scored."""
    features: int
    """Of the new spec, all in all."""
    alpha: float
    """The base model's learning rate, the best of a few."""
    held_out_loss: float
    """Log loss, in nats per row, of the last fifth of these rows without the crosses chosen."""
    held_out_gain: float
    """What these take off it."""
    held_out_error: float
    """The standard error of that."""
    left_out: tuple[str, ...]
    """Fields that cannot be crossed, as a row may have any number of their features."""

    @property
    def names(self) -> list[str]:
        """Of the crosses chosen."""
        return self._first(len(self.chosen))[1]

    @property
    def bits(self) -> int:
        """Of the new spec: more than before where the crosses have too many features."""
        return self._first(len(self.chosen))[0].bits

    def yaml(self, count: int | None = None) -> str:
        """The spec, with the crosses chosen, or so many of them, after those that it had."""
        chosen = self.chosen[:count]
        return _yaml(*self._first(len(chosen)), chosen)

    def _first(self, count: int) -> tuple[FeatureSpec, list[str]]:
        """The spec with the fields of so many crosses, and their names."""
        chosen = self.chosen[:count]
        spec = with_crossed_fields(self.spec, {*chain.from_iterable(each.fields for each in chosen)})
        if chosen:
            spec = spec.model_copy(update={"bits": _bits(spec.bits, self.features)})
        return spec, _names(spec, chosen)

    def to_json(self) -> dict[str, Any]:
        """All but the spec, as JSON can hold it."""
        crosses = [
            {"name": name, "of": each.fields, "gain_per_1000_rows": each.gain, "standard_error": each.error}
            for name, each in zip(self.names, self.chosen, strict=True)
        ]
        of_rows = {
            name: getattr(self, name) for name in ("rows", "rows_in_all", "candidates", "bits", "alpha")
        }
        held_out = {
            name: getattr(self, name) for name in ("held_out_loss", "held_out_gain", "held_out_error")
        }
        return {"crosses": crosses, **of_rows, **held_out, "left_out": self.left_out}


def suggest_crosses(
    spec: FeatureSpec,
    inputs: Sequence[str | Path],
    *,
    most: int = MOST_CROSSES,
    rows: int = MOST_ROWS,
    stop: int | None = None,
    workers: int = 1,
    on_progress: Callable[[int, float], None] = lambda rows, fraction: None,
) -> Suggestion:
    """The crosses of the fields of `spec` that lower the log loss of these rows, at most so many.

    Only rows before `stop` are looked at, if it is given; of more than `rows`, so many, spread evenly.
    Features of windows take no part, as they are those of no one row. The outcome depends on neither the
    number of workers nor their speed. Raises DataError and SpecError.
    """
    if datasets := [path for path in inputs if is_dataset(path)]:
        raise DataError(
            f"{datasets[0]}: in a hashed data set, the values of the fields can no longer be told apart; give"
            f" the raw files."
        )
    if "-" in inputs:
        raise DataError(
            "standard input can be read only once, and this takes several passes; write its rows to a file."
        )
    of = candidate_fields(spec)
    files = input_files(inputs)
    fitted = fit(spec.of_fields(spec.fields), files, rows=None if stop is None else [range(stop)])
    source = RawSource(fitted, files, threads=workers)
    values = RawSource(spec_of_values(fitted), files, threads=workers)
    threads = Threads(workers, "suggest")
    try:
        read = read_rows(
            source, values, rows, stop, threads, lambda done, fraction: on_progress(done, _READING * fraction)
        )
        known = frozenset(frozenset(of.get(part, part) for part in cross.of) for cross in spec.crosses)
        found = find_crosses(
            read,
            known,
            most,
            threads,
            lambda done, fraction: on_progress(done, _READING + (1 - _READING) * fraction),
        )
    finally:
        threads.close()
    return Suggestion(
        spec=spec,
        chosen=found.chosen,
        rows=len(read),
        rows_in_all=read.of,
        candidates=found.scored,
        features=found.features,
        alpha=found.alpha,
        held_out_loss=found.loss,
        held_out_gain=found.gain,
        held_out_error=found.error,
        left_out=tuple(field.name for field in spec.fields if field.several),
    )


def _names(spec: FeatureSpec, chosen: Sequence[Chosen]) -> list[str]:
    """A name for each cross chosen, that of no field or cross of `spec`."""
    taken = {field.name for field in spec.fields} | {cross.name for cross in spec.crosses}
    names = []
    for each in chosen:
        name = " * ".join(each.fields)
        while name in taken:
            name += "'"
        taken.add(name)
        names.append(name)
    return names


def _bits(bits: int, features: int) -> int:
    """At least `bits`, and enough that few of so many features share a slot, if that takes no gigabyte."""
    return max(bits, min((_SLOTS_PER_FEATURE * features - 1).bit_length(), _MOST_BITS))


def _yaml(spec: FeatureSpec, names: Sequence[str], chosen: Sequence[Chosen]) -> str:
    """`spec` with the crosses chosen, each with what it brought."""
    text = spec.to_yaml()
    if chosen:
        text += "" if spec.crosses else "crosses:\n"
        text += "# found on top of those before; gain: nats of log loss per 1,000 rows\n"
    for name, each in zip(names, chosen, strict=True):
        of = ", ".join(map(_quoted, each.fields))
        text += f"- {{name: {_quoted(name)}, of: [{of}]}}  # gain {each.gain:.4f} +- {each.error:.4f}\n"
    return text


def _quoted(text: str) -> str:
    """As YAML reads it, whatever it is."""
    return json.dumps(text)
