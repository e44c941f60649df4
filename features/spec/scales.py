"""The scales of a spec: how large the features of a field or cross are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ctr.errors import SpecError
from features.spec.fields import Name, misfit

if TYPE_CHECKING:
    from features.spec.model import FeatureSpec

LEAST, MOST = 1e-3, 1e3
Scales = dict[Name, Annotated[float, Field(ge=LEAST, le=MOST, allow_inf_nan=False)]]


def check_scales(scales: Mapping[str, float], names: Sequence[str]) -> None:
    """Raise `misfit` at the first that is of none of the fields and crosses of these `names`."""
    for name in scales:
        if name not in names:
            raise misfit(("scales", name), f"there is no field or cross {name!r}; scale names of these")


def with_scales(spec: FeatureSpec, scales: Mapping[str, float]) -> FeatureSpec:
    """`spec` with these scales in place of its own. Raises SpecError for what it has not, and wrong ones."""
    for name, scale in scales.items():
        if name not in spec.names:
            raise SpecError(
                f"there is no field or cross {name!r} to scale; the spec has {', '.join(spec.names)}."
            )
        if not LEAST <= scale <= MOST:
            raise SpecError(f"the scale of {name!r} is {scale:g}; give a number from {LEAST:g} to {MOST:g}.")
    return spec.model_copy(update={"scales": {**spec.scales, **scales}})
