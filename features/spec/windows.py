"""`Window`: a spec's sliding window over earlier rows, and its features."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError

from ctr.features.spec.fields import FROZEN, Edges, InputField, Name, distinct, misfit
from ctr.features.spec.time_fields import check_format
from ctr.features.spec.yaml_text import Place

PARTS = 16
"""A span slides in steps of a sixteenth of itself."""

SERVED = "ctr:windows"
"""The column of a logged row with the window features that it was served with; see
`ctr.features.windows.served`."""

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LONGEST = 10 * 366 * 86_400


def microseconds(duration: str) -> int:
    """The length of a duration such as `10m`."""
    return int(duration[:-1]) * _SECONDS[duration[-1]] * 1_000_000


def _duration(text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,9}[smhdw]", text) or microseconds(text) > _LONGEST * 1_000_000:
        raise PydanticCustomError("duration", "{text}", {"text": text})
    return text


def _not_zero(duration: str) -> str:
    if microseconds(duration) == 0:
        raise misfit((), "must be at least 1s")
    return duration


Duration = Annotated[str, AfterValidator(_duration)]
"""A whole number and a unit: seconds, minutes, hours, days or weeks, such as `10m`."""
Span = Annotated[Duration, AfterValidator(_not_zero)]
"""A duration above 0."""

Kind = Literal["count", "clicks", "rate", "since_last"]

# From one in 10,000 on, each is the previous one times the square root of two.
_RATES = tuple(round(1e-4 * 2 ** (k / 2), 6) for k in range(27))


class Window(BaseModel):
    """Counts, clicks and click rate of earlier rows with the same key, and the time since the last one."""

    model_config = FROZEN

    name: Name
    """Its features are called `<name>.count.1h`, `<name>.since_last` and so on."""
    key: Annotated[tuple[Name, ...], Field(strict=False, min_length=1), AfterValidator(distinct)]
    """The columns whose texts together make up the key."""
    time: Name
    """The column of the time; rows must be in order of time, but for `slack`."""
    format: Name | None = None
    """Directives of Python's `strptime`, `unix` or `unix_ms`; None: ISO 8601, as in time fields."""
    features: Annotated[tuple[Kind, ...], Field(strict=False, min_length=1), AfterValidator(distinct)]
    spans: Annotated[tuple[Span, ...], Field(strict=False), AfterValidator(distinct)] = ()
    """How far counts, clicks and rates look back; each span gives features of its own."""
    half_life: Span | None = None
    """Counts, clicks and rates also look back without limit, with weights that halve in this time."""
    delay: Duration | None = None
    """How long after its row a click becomes known; `0s`: at once."""
    expire: Span | None = None
    """A key without rows for longer than this is forgotten; None: the longest span or 8 half-lives."""
    slack: Duration = "0s"
    """How much earlier a row may be than a row before it."""
    strength: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 20.0
    """How many rows with the click rate of all keys are added to those of a key to compute its rate."""
    rate_edges: Edges = _RATES
    """The increasing bounds between buckets of rates."""

    @property
    def with_clicks(self) -> bool:
        """Whether it counts clicks as well as rows."""
        return "clicks" in self.features or "rate" in self.features

    @property
    def expires(self) -> int:
        """After how many microseconds without rows a key is forgotten."""
        if self.expire:
            return microseconds(self.expire)
        return max(*map(microseconds, self.spans), 8 * microseconds(self.half_life or "0s"), 0)

    @property
    def looks(self) -> tuple[str, ...]:
        """Its spans and half-life, as feature names have them."""
        return (*self.spans, *([f"half_{self.half_life}"] if self.half_life else []))

    @cached_property
    def fields(self) -> tuple[WindowField, ...]:
        """Its features, as fields of the spec."""
        return tuple(
            WindowField(
                name=".".join(filter(None, (self.name, kind, span))), column=self.time, kind=kind, span=span
            )
            for kind in self.features
            for span in ((None,) if kind == "since_last" else self.looks)
        )

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_format(self.format, hour=False, day=True)
        sliding = [kind for kind in self.features if kind != "since_last"]
        if sliding and not self.looks:
            raise misfit((), f"`spans` is missing: say how far {sliding[0]} looks back, such as [1h, 1d]")
        if self.looks and not sliding:
            key = "spans" if self.spans else "half_life"
            raise misfit((key,), "since_last has no span; set `expire` instead")
        if not self.looks and self.expire is None:
            raise misfit((), "`expire` is missing: say after how long a key is forgotten, such as 7d")
        if self.with_clicks and self.delay is None:
            raise misfit((), "`delay` is missing: say after how long a click is known, such as 10m")
        if self.delay is not None and not self.with_clicks:
            raise misfit(("delay",), "it is for clicks and rate alone; remove it")
        slow = microseconds(self.delay or "0s") + microseconds(self.slack)
        looks: list[tuple[str, Place]] = [(span, ("spans", k)) for k, span in enumerate(self.spans)]
        looks += [(self.half_life, ("half_life",))] if self.half_life else []
        for span, place in looks:
            if microseconds(span) > self.expires:
                raise misfit(place, f"{span} is longer than `expire`, {self.expire}; raise that")
            if microseconds(span) < slow:
                raise misfit(
                    place,
                    f"{span} is shorter than `delay` and `slack` together; give it a window of its own,"
                    " without clicks and rate",
                )
        return self


class WindowField(InputField):
    """One feature of a window. No spec can name it: it comes from `windows`."""

    type: Literal["window"] = "window"
    kind: Kind
    span: str | None
