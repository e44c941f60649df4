"""`NumberField`: columns of numbers, the steps applied to a number, and the bucket it falls into."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, Field, WrapValidator
from pydantic_core import PydanticKnownError

from ctr.features.spec.fields import FROZEN, Edges, Finite, InputField, misfit, one_of, transforms_of


def _ordered(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = bounds
    if not low < high:
        raise misfit((), f"the first number must be the smaller one, got {low:g} and {high:g}")
    return bounds


def _not_zero(scale: float) -> float:
    if scale == 0:
        raise misfit((), "every number would be 0; scale by another one")
    return scale


class Clip(BaseModel):
    """Raises numbers below the first bound to it, and lowers numbers above the second to that."""

    model_config = FROZEN

    clip: Annotated[tuple[Finite, Finite], Field(strict=False), AfterValidator(_ordered)]


class Scale(BaseModel):
    """Multiplies numbers by this factor."""

    model_config = FROZEN

    scale: Annotated[Finite, AfterValidator(_not_zero)]


_PLAIN_STEPS = ("sqrt", "square", "log", "zscore", "minmax")
_KEYED_STEPS: dict[str, type[Clip | Scale]] = {"clip": Clip, "scale": Scale}
_LEARNT_STEPS = ("zscore", "minmax")


def _step_of(data: Any, _: Any) -> str | Clip | Scale:
    if isinstance(data, (Clip, Scale)) or (isinstance(data, str) and data in _PLAIN_STEPS):
        return data
    if isinstance(data, dict) and len(data) == 1 and (key := next(iter(data))) in _KEYED_STEPS:
        return _KEYED_STEPS[key].model_validate(data)
    expected = ", ".join(map(repr, _PLAIN_STEPS)) + ", {clip: [LOW, HIGH]} or {scale: NUMBER}"
    raise PydanticKnownError("literal_error", {"expected": expected})


def _transform_name(name: str) -> str:
    names = transforms_of("number")
    if name not in names:
        raise PydanticKnownError("literal_error", {"expected": one_of(names)})
    return name


class NumberField(InputField):
    """A column of numbers, each replaced by a bucket."""

    type: Literal["number"]
    transform: Annotated[str, AfterValidator(_transform_name)]
    """`log`: floor(v) up to 2, above that 2 + floor(ln(v)**2); `edges`: how many edges are <= v; `width`:
    floor(v / width); `quantiles`: as `edges`, with edges learnt from the data."""
    edges: Edges = ()
    """Strictly increasing; for the transform `edges` only."""
    width: Annotated[Finite, Field(gt=0)] | None = None
    """The width of every bucket; for the transform `width` only."""
    buckets: Annotated[int, Field(ge=2, le=4096)] | None = None
    """How many buckets, each with as many of the numbers learnt from; for the transform `quantiles` only."""
    duplicates: Literal["drop"] | None = None
    """What happens if quantiles coincide: None: an error, `drop`: they are one edge; for `quantiles` only."""
    steps: Annotated[tuple[Annotated[Any, WrapValidator(_step_of)], ...], Field(strict=False)] = ()
    """The steps applied to the number before the transform, in order: names in `_PLAIN_STEPS`, a `Clip` or
    a `Scale`."""

    @property
    def numeric(self) -> bool:
        return True

    @property
    def step(self) -> str:
        return f"{self.transform} after steps" if self.steps and self.transform in _FAST else self.transform

    @property
    def learns(self) -> tuple[str, ...]:
        arrays = ("scaling",) if self.learnt_step is not None else ()
        return (*arrays, "edges") if self.transform == "quantiles" else arrays

    @property
    def learnt_step(self) -> int | None:
        """The index of the step that learns from data, if any."""
        return next((i for i, step in enumerate(self.steps) if step in _LEARNT_STEPS), None)

    def check(self) -> None:
        for key, transform in _KEYS.items():
            if getattr(self, key) and self.transform != transform:
                them = "it" if key == "width" else "them"
                raise misfit((key,), f"only `transform: {transform}` has {key}; set it or remove {them}")
        for key, remedy in _NEEDED.items():
            if self.transform == _KEYS[key] and not getattr(self, key):
                raise misfit((), f"`{key}` is missing: {remedy}")
        learnt = [i for i, step in enumerate(self.steps) if step in _LEARNT_STEPS]
        if len(learnt) > 1:
            first, second = (self.steps[i] for i in learnt[:2])
            raise misfit(
                ("steps", learnt[1]),
                f"a field can learn one scaling, and `{first}` is there already; remove one of them"
                if first != second
                else f"`{second}` is there twice; remove one of them",
            )
        if learnt and self.transform == "quantiles":
            raise misfit(
                ("steps", learnt[0]),
                f"quantiles are the same buckets without `{self.steps[learnt[0]]}`; remove it",
            )


class LinearField(NumberField):
    """A column of numbers, each of which is the value of one feature."""

    several: ClassVar[bool] = True
    not_crossed: ClassVar[str | None] = (
        "keeps its value (transform: linear), and only buckets cross; give the cross a field with another"
        " transform of the same column, such as quantiles"
    )

    @property
    def at_most(self) -> int:
        return 1


_FAST = ("log", "edges")
"""The transforms with kernels of their own for fields without steps."""
_KEYS = {"edges": "edges", "width": "width", "buckets": "quantiles", "duplicates": "quantiles"}
"""The keys that only one transform has."""
_NEEDED = {
    "edges": "list the numbers between the buckets",
    "width": "say how wide every bucket is, such as width: 0.5",
    "buckets": "say how many there are to be, such as buckets: 10",
}
