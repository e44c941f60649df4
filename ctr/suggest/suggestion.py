"""`suggest_crosses`: from raw files and their spec to the crosses that are worth having."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ctr.errors import DataError
from ctr.suggest.crossed import with_crossed_fields
from ctr.suggest.rows import candidate_fields, read_rows, spec_of_values
from ctr.suggest.search import MOST_CROSSES, Chosen, find_crosses
from features import FeatureSpec, RawSource, fit, is_dataset

MOST_ROWS = 1_000_000
_SLOTS_PER_FEATURE = 25  # one of so many features shares its slot with another
_MOST_BITS = 26  # 2**26 slots take 512 MiB
_READING = 0.2  # of the time


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The crosses found, and what they bring."""

    yaml: str
    """The spec, with the crosses chosen after those that it had."""
    names: tuple[str, ...]
    """Of the crosses chosen."""
    chosen: tuple[Chosen, ...]
    """In the order in which they were taken."""
    rows: int
    """That were looked at."""
    rows_in_all: int
    candidates: int
    """Crosses that were scored."""
    bits: int
    """Of the new spec: more than before where the crosses have too many features."""
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

    def to_json(self) -> dict[str, Any]:
        """All but the spec, as JSON can hold it."""
        crosses = [
            {"name": name, "of": each.fields, "gain_per_1000_rows": each.gain, "standard_error": each.error}
            for name, each in zip(self.names, self.chosen, strict=True)
        ]
        return {"crosses": crosses} | {
            name: value for name, value in asdict(self).items() if name not in ("yaml", "names", "chosen")
        }


def suggest_crosses(
    spec: FeatureSpec,
    inputs: Sequence[str | Path],
    *,
    most: int = MOST_CROSSES,
    rows: int = MOST_ROWS,
    workers: int = 1,
    on_progress: Callable[[int, float], None] = lambda rows, fraction: None,
) -> Suggestion:
    """The crosses of the fields of `spec` that lower the log loss of these rows, at most so many.

    Of more rows than `rows`, so many are looked at, spread evenly over all. The outcome depends on neither
    the number of workers nor their speed. Raises DataError and SpecError.
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
    fitted = fit(spec, inputs)
    source = RawSource(fitted, inputs, threads=workers)
    values = RawSource(spec_of_values(fitted), inputs, threads=workers)
    pool = ThreadPoolExecutor(workers, "suggest")
    try:
        read = read_rows(
            source, values, rows, pool, lambda done, fraction: on_progress(done, _READING * fraction)
        )
        known = frozenset(frozenset(of.get(part, part) for part in cross.of) for cross in spec.crosses)
        found = find_crosses(
            read,
            known,
            most,
            pool,
            lambda done, fraction: on_progress(done, _READING + (1 - _READING) * fraction),
        )
    finally:
        pool.shutdown(cancel_futures=True)
    new = with_crossed_fields(spec, {*chain.from_iterable(each.fields for each in found.chosen)})
    if found.chosen:
        new = new.model_copy(update={"bits": _bits(spec.bits, found.features)})
    names = _names(new, found.chosen)
    return Suggestion(
        yaml=_yaml(new, names, found.chosen),
        names=tuple(names),
        chosen=found.chosen,
        rows=len(read),
        rows_in_all=read.of,
        candidates=found.scored,
        bits=new.bits,
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
