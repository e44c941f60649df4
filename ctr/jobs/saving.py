"""The end of a job: its model goes to disk, whatever the disk says, and its store is emptied."""

from __future__ import annotations

import tempfile
from pathlib import Path
from secrets import token_hex

from ctr.errors import ModelError, StoreError
from ctr.features import Slots, remove_drafts
from ctr.jobs.remains import Remains
from ctr.model import Model, require_model_or_nothing, save_model
from ctr.optimizers import Float32
from ctr.outputs import require_writable
from ctr.ps import Store
from ctr.settings import TrainJob


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
