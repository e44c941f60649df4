"""The scales of a spec: how large the features of a field or cross are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from features.spec.fields import Name, misfit

LEAST, MOST = 1e-3, 1e3
Scales = dict[Name, Annotated[float, Field(ge=LEAST, le=MOST, allow_inf_nan=False)]]


def check_scales(scales: Mapping[str, float], names: Sequence[str]) -> None:
    """Raise `misfit` at the first that is of none of the fields and crosses of these `names`."""
    known = set(names)
    for name in scales:
        if name not in known:
            raise misfit(("scales", name), f"there is no field or cross {name!r}; scale names of these")
