"""`Suggestion`: the suggested crosses, and the spec with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ctr.crosses.rows import with_crossed_fields
from ctr.features import FeatureSpec

_SLOTS_PER_FEATURE = 25  # one in so many features shares its slot with another
_MOST_BITS = 26  # 2**26 slots take 512 MiB


@dataclass(frozen=True, slots=True)
class Chosen:
    """A chosen cross."""

    fields: tuple[str, ...]
    gain: float
    """The progressive log loss it saves on top of the crosses of earlier rounds: nats per 1,000 rows."""
    error: float
    """The standard error of the gain."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The suggested crosses and their gain."""

    spec: FeatureSpec
    """The original spec."""
    chosen: tuple[Chosen, ...]
    """In the order in which they were chosen."""
    rows: int
    """The rows that were used."""
    rows_in_all: int
    candidates: int
    """Crosses that were scored."""
    features: int
    """All features of the new spec."""
    alpha: float
    """The base model's learning rate, the best of a few."""
    held_out_loss: float
    """Log loss, in nats per row, of the last fifth of these rows without the chosen crosses."""
    held_out_gain: float
    """The reduction of it by the chosen crosses."""
    held_out_error: float
    """The standard error of the reduction."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """Fields that cannot be crossed, as a row may have several of their features."""
        return tuple(field.name for field in self.spec.fields if field.several)

    @property
    def names(self) -> list[str]:
        """The names of the chosen crosses."""
        return self._first(len(self.chosen))[1]

    @property
    def bits(self) -> int:
        """The bits of the new spec: more than before if the crosses have too many features."""
        return self._first(len(self.chosen))[0].bits

    def yaml(self, count: int | None = None) -> str:
        """The spec, followed by the chosen crosses, or by the first `count` of them."""
        chosen = self.chosen[:count]
        return _yaml(*self._first(len(chosen)), chosen)

    def _first(self, count: int) -> tuple[FeatureSpec, list[str]]:
        """The spec with the fields of the first `count` crosses, and the names of these crosses."""
        chosen = self.chosen[:count]
        spec = with_crossed_fields(self.spec, {*chain.from_iterable(each.fields for each in chosen)})
        if chosen:
            spec = spec.model_copy(update={"bits": _bits(spec.bits, self.features)})
        return spec, _names(spec, chosen)

    def to_json(self) -> dict[str, Any]:
        """Everything except the spec, as JSON."""
        crosses = [
            {"name": name, "of": each.fields, "gain_per_1000_rows": each.gain, "standard_error": each.error}
            for name, each in zip(self.names, self.chosen, strict=True)
        ]
        measured = ("rows", "rows_in_all", "candidates", "bits", "alpha")
        held_out = ("held_out_loss", "held_out_gain", "held_out_error")
        facts = {name: getattr(self, name) for name in (*measured, *held_out)}
        return {"crosses": crosses, **facts, "left_out": self.left_out}


def _names(spec: FeatureSpec, chosen: Sequence[Chosen]) -> list[str]:
    """A name for each chosen cross, which no field or cross of `spec` has."""
    used = {field.name for field in spec.fields} | {cross.name for cross in spec.crosses}
    names = []
    for each in chosen:
        name = " * ".join(each.fields)
        while name in used:
            name += "'"
        used.add(name)
        names.append(name)
    return names


def _bits(bits: int, features: int) -> int:
    """At least `bits`, and enough that few features share a slot, if that takes less than a gigabyte."""
    return max(bits, min((_SLOTS_PER_FEATURE * features - 1).bit_length(), _MOST_BITS))


def _yaml(spec: FeatureSpec, names: Sequence[str], chosen: Sequence[Chosen]) -> str:
    """`spec` with the chosen crosses, each with its gain."""
    text = spec.to_yaml()
    if chosen:
        text += "" if spec.crosses else "crosses:\n"
        text += "# found on top of those before; gain: nats of log loss per 1,000 rows\n"
    for name, each in zip(names, chosen, strict=True):
        of = ", ".join(map(_quoted, each.fields))
        text += f"- {{name: {_quoted(name)}, of: [{of}]}}  # gain {each.gain:.4f} +- {each.error:.4f}\n"
    return text


def _quoted(text: str) -> str:
    """Any text, quoted for YAML."""
    return json.dumps(text)
