"""The end of a job: its model is saved, its store emptied; `Remains`: what one that ended early leaves."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

from ctr.errors import ModelError, StoreError, named
from ctr.features import Slots, remove_drafts
from ctr.model import Model, require_model_or_nothing, save_model
from ctr.optimizers import Float32
from ctr.outputs import printable, require_writable
from ctr.ps import Store, without_password
from ctr.settings import TrainJob


@dataclass(slots=True)
class Remains:
    """Kept up to date while a job runs; as text, what is true when it ends now."""

    job: TrainJob
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
        self.in_store = not self.job.store.startswith(("memory:", "embedded:"))

    def __str__(self) -> str:
        if self.saved_to is not None:
            return " ".join([f"The model is in {self.saved_to}, but was not evaluated.", *self._to_drop()])
        if not self.began:
            return " ".join(["Nothing was learnt yet, and nothing was written.", *self._to_drop()])
        advice = []
        written = self._checkpoint_written()
        if written is not None and (self.job.resume or written != self._checkpoint_before):
            advice.append(
                f"Repeat the command with {named('resume')} to go on from the checkpoint in "
                f"{self.job.checkpoint}."
            )
        if self.in_store:
            model = shlex.quote(printable(self.job.model))
            advice.append(
                "The store holds what was trained so far, and accepts no new job of that name until it is "
                "removed: "
                f"`ctr ps export --store {self._url} --out {model}` saves it as a model, "
                f"`ctr ps drop --store {self._url}` removes it."
            )
        elif not advice:
            advice.append("Nothing was written: what was learnt so far was in memory alone.")
        return " ".join(advice)

    def _to_drop(self) -> list[str]:
        if not self.in_store:
            return []
        return [f"The store still holds its parameters: `ctr ps drop --store {self._url}` removes them."]

    def _checkpoint_written(self) -> int | None:
        """When the checkpoint that is there was, in ns."""
        if self.job.checkpoint is None:
            return None
        from ctr.checkpoint import MANIFEST  # with it comes all that training through Redis needs

        try:
            return (self.job.checkpoint / MANIFEST).stat().st_mtime_ns
        except OSError:
            return None

    @property
    def _url(self) -> str:
        return shlex.quote(without_password(self.job.store))


def require_places(job: TrainJob) -> None:
    """Raise unless model and checkpoint can be written."""
    for place in (job.model, job.interrupted) if job.saved else ():
        require_model_or_nothing(place)
        require_writable(place)
        remove_drafts(place)
    if job.checkpoint is not None:
        from ctr.checkpoint import require_checkpoint_or_nothing

        require_checkpoint_or_nothing(job.checkpoint)
        if job.saved and job.checkpoint.resolve() in (job.model.resolve(), job.interrupted.resolve()):
            raise ModelError(
                f"{job.checkpoint}: the model goes there; give another folder for the checkpoint."
            )


def save_or_rescue(model: Model, place: Path, state: tuple[Slots, Float32], remains: Remains) -> None:
    """Save the model at `place`; what no store holds any more is put elsewhere rather than lost."""
    try:
        save_model(model, place, state)
    except ModelError as error:
        if remains.in_store:
            raise
        rescued = Path(tempfile.gettempdir()) / f"ctr-{model.id}-{token_hex(4)}"
        try:
            save_model(model, rescued, state)
        except ModelError as other:
            raise ModelError(
                f"{error} There was no room for it in {rescued.parent} either: it is lost."
            ) from other
        raise ModelError(f"{error} It was saved to {rescued} instead: move it from there.") from error
    remains.saved_to = place


def empty_store(store: Store | None, remains: Remains) -> str | None:
    """Drop what is in the store, as it is not needed any more; what to tell if that fails."""
    if store is None or not remains.in_store:
        return None  # servers of our own end with the job
    try:
        store.drop()
    except StoreError as error:
        return f"{error} {remains}"
    remains.in_store = False
    return None
