"""`Remains`: what a job that ended early has left, and how its user goes on."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from ctr.errors import named
from ctr.outputs import printable
from ctr.ps import without_password


@dataclass(slots=True)
class Remains:
    """Kept up to date while a job runs; as text, what is true when it ends now."""

    store: str
    """URL of its store."""
    model: Path
    """Where its model is to go."""
    checkpoint: Path | None = None
    resumed: bool = False
    """Whether the checkpoint that was there before is of this job, too."""
    began: bool = False
    """Whether training has begun."""
    in_store: bool = False
    """Whether a Redis that outlives the job holds what was trained."""
    saved_to: Path | None = None
    """The model, once it is on disk."""
    _checkpoint_before: int | None = field(init=False)

    def __post_init__(self) -> None:
        self._checkpoint_before = self._checkpoint_written()

    def begin(self) -> None:
        """Training begins."""
        self.began = True
        self.in_store = not self.store.startswith(("memory:", "embedded:"))

    def __str__(self) -> str:
        if self.saved_to is not None:
            return " ".join([f"The model is in {self.saved_to}, but was not evaluated.", *self._to_drop()])
        if not self.began:
            return " ".join(["Nothing was learnt yet, and nothing was written.", *self._to_drop()])
        found = []
        written = self._checkpoint_written()
        if written is not None and (self.resumed or written != self._checkpoint_before):
            found.append(
                f"Repeat the command with {named('resume')} to go on from the checkpoint in "
                f"{self.checkpoint}."
            )
        if self.in_store:
            found += self._to_export()
        elif not found:
            found.append("Nothing was written: what was learnt so far was in memory alone.")
        return " ".join(found)

    def _to_export(self) -> list[str]:
        model = shlex.quote(printable(self.model))
        return [
            "The store holds what was trained so far, and accepts no new job of that name until it is "
            "removed: "
            f"`ctr ps export --store {self._url} --out {model}` saves it as a model, "
            f"`ctr ps drop --store {self._url}` removes it."
        ]

    def _to_drop(self) -> list[str]:
        if not self.in_store:
            return []
        return [f"The store still holds its parameters: `ctr ps drop --store {self._url}` removes them."]

    def _checkpoint_written(self) -> int | None:
        """When the checkpoint that is there was, in ns."""
        if self.checkpoint is None:
            return None
        from ctr.checkpoint import MANIFEST  # with it comes all that training through Redis needs

        try:
            return (self.checkpoint / MANIFEST).stat().st_mtime_ns
        except OSError:
            return None

    @property
    def _url(self) -> str:
        return shlex.quote(without_password(self.store))
