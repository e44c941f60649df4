"""`Window`: what a spec says of sliding windows over the rows before, and the features that come of them."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field
from pydantic_core import PydanticCustomError

from ctr.features.spec.fields import FROZEN, InputField, Name, check_distinct, check_increasing, misfit
from ctr.features.spec.time_fields import check_format
from ctr.features.spec.yaml_text import Place

PARTS = 16
"""A span slides in steps of its sixteenth."""

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LONGEST = 10 * 366 * 86_400


def microseconds(duration: str) -> int:
    """How long `10m` is, say."""
    return int(duration[:-1]) * _SECONDS[duration[-1]] * 1_000_000


def _duration(text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,9}[smhdw]", text) or microseconds(text) > _LONGEST * 1_000_000:
        raise PydanticCustomError("duration", "{text}", {"text": text})
    return text


Duration = Annotated[str, AfterValidator(_duration)]
"""A whole number and a unit: seconds, minutes, hours, days or weeks, such as `10m`."""

Kind = Literal["count", "clicks", "rate", "since_last"]

# From one in 10,000 on, each the square root of two times the one before.
_RATES = tuple(round(1e-4 * 2 ** (k / 2), 6) for k in range(27))


class Window(BaseModel):
    """Counts, clicks and click rate of the rows before with the same key, and the time since the last one."""

    model_config = FROZEN

    name: Name
    """Its features are `<name>.count.1h`, `<name>.since_last` and the like."""
    key: Annotated[tuple[Name, ...], Field(strict=False, min_length=1)]
    """The columns whose texts together are the key."""
    time: Name
    """The column of the time; rows come in its order."""
    format: Name | None = None
    """Directives as of Python's `strptime`, `unix` or `unix_ms`; None: ISO 8601, as of a field of times."""
    features: Annotated[tuple[Kind, ...], Field(strict=False, min_length=1)]
    spans: Annotated[tuple[Duration, ...], Field(strict=False)] = ()
    """How far counts, clicks and rates look back; each is a feature of its own."""
    half_life: Duration | None = None
    """Counts, clicks and rates also look back without an end, at rows that weigh half after so long."""
    delay: Duration | None = None
    """How long after its row a click is known; `0s`: at once."""
    expire: Duration | None = None
    """A key that no row had for longer than this is forgotten; None: the longest span or 8 half-lives."""
    slack: Duration = "0s"
    """How much earlier than a row before it a row may be."""
    strength: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 20.0
    """How many rows with the click rate of all keys are added to those of a key before its rate is taken."""
    rate_edges: Annotated[tuple[Annotated[float, Field(allow_inf_nan=False)], ...], Field(strict=False)] = (
        _RATES
    )
    """Increasing numbers between the buckets of rates."""

    @property
    def with_clicks(self) -> bool:
        """Whether it keeps clicks, and not only rows."""
        return "clicks" in self.features or "rate" in self.features

    @property
    def expires(self) -> int:
        """After how many microseconds without a row a key is forgotten."""
        if self.expire:
            return microseconds(self.expire)
        return max(*map(microseconds, self.spans), 8 * microseconds(self.half_life or "0s"), 0)

    @property
    def looks(self) -> tuple[str, ...]:
        """The ways to look back, as the names of features have them."""
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

    def check(self, place: Place) -> None:
        """Raise `misfit` if its keys do not fit together."""
        check_format(place, self.format, hour=False, day=True)
        for key, names in (("key", self.key), ("features", self.features), ("spans", self.spans)):
            check_distinct(names, (*place, key))
        sliding = [kind for kind in self.features if kind != "since_last"]
        if sliding and not self.looks:
            raise misfit(place, f"`spans` is missing: say how far {sliding[0]} looks back, such as [1h, 1d]")
        if self.looks and not sliding:
            key = "spans" if self.spans else "half_life"
            raise misfit((*place, key), "since_last has no span; set `expire` instead")
        if not self.looks and self.expire is None:
            raise misfit(place, "`expire` is missing: say after how long a key is forgotten, such as 7d")
        if self.with_clicks and self.delay is None:
            raise misfit(place, "`delay` is missing: say after how long a click is known, such as 10m")
        if self.delay is not None and not self.with_clicks:
            raise misfit((*place, "delay"), "it is for clicks and rate alone; remove it")
        self._check_durations(place)
        check_increasing(self.rate_edges, (*place, "rate_edges"))

    def _check_durations(self, place: Place) -> None:
        if self.expire is not None and microseconds(self.expire) < 1:
            raise misfit((*place, "expire"), "must be at least 1s")
        slow = microseconds(self.delay or "0s") + microseconds(self.slack)
        looks: list[tuple[str, Place]] = [(span, ("spans", k)) for k, span in enumerate(self.spans)]
        looks += [(self.half_life, ("half_life",))] if self.half_life else []
        for span, key in looks:
            if microseconds(span) < 1:
                raise misfit((*place, *key), "must be at least 1s")
            if microseconds(span) > self.expires:
                raise misfit((*place, *key), f"{span} is longer than `expire`, {self.expire}; raise that")
            if microseconds(span) < slow:
                raise misfit(
                    (*place, *key),
                    f"{span} is shorter than `delay` and `slack` together; give it a window of its own,"
                    " without clicks and rate",
                )


class WindowField(InputField):
    """One feature of a window. No spec can name it: `windows` say which there are."""

    type: Literal["window"] = "window"
    kind: Kind
    span: str | None
