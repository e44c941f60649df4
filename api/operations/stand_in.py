"""`StandIn`: the age of a published version that is served until there are live weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from time import time

from ctr.model import Model

_FOR = "stands_in_for"
"""The entry of its manifest: the store that has no job yet."""


@dataclass(slots=True)
class StandIn:
    """Reports the age of a version as `LiveWeights` report theirs."""

    failure: str
    """Why its weights become old."""
    created: float
    """Seconds since 1970."""
    changes: int = 0
    on_served: Callable[[float], object] = lambda _: None

    @property
    def age_s(self) -> float:
        """Seconds since the version was created."""
        return max(time() - self.created, 0.0)

    def start(self) -> None:
        """Do nothing, as its weights do not change."""

    def close(self) -> None:
        """The same."""


def standing_in(model: Model, store: str) -> Model:
    """The model, served instead of the weights of this store."""
    return replace(model, manifest={**model.manifest, _FOR: store})


def stand_in_of(model: Model) -> StandIn | None:
    """Its age if it is served instead of live weights."""
    store = model.manifest.get(_FOR)
    if store is None:
        return None
    created = datetime.fromisoformat(model.manifest["created"]).timestamp()
    return StandIn(f"no job was found in {store} yet, so a published version is served", created)
