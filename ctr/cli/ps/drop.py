"""`ctr ps drop`: delete a model and its job from a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ctr.cli.ps.status import look
from ctr.cli.tables import size, some

if TYPE_CHECKING:
    from ctr.distributed import JobStatus
    from ctr.ps.status import StoreStatus
    from ctr.settings import ModelInRedis


def drop(
    store: ModelInRedis,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask, even if a job is running.")] = False,
) -> None:
    """Delete a model and its job from Redis, for example after a failed job.

    Shows what would be deleted, and asks. `ctr train` deletes its own model when it succeeds. Saved models
    and checkpoints are not touched.

    Example: `ctr ps drop --store redis://localhost:6379/0?model=ads`
    """
    from ctr.errors import StoreError
    from ctr.ps import parse_redis_url
    from ctr.ps.redis import drop_incarnation
    from ctr.ps.status import StoreObserver

    url = parse_redis_url(store)
    observer = StoreObserver(url)
    status, job = look(observer)
    if status.model is None:
        why = status.problem or f"there is no model {status.model_name!r} in this store"
        raise StoreError(f"{url}: {why}.")
    if status.unreachable:
        raise StoreError(
            f"{url}: {len(status.unreachable)} partitions cannot be reached, and would remain; "
            "bring the nodes back first (see `ctr ps status`)."
        )
    for line in _lines(status, job):
        typer.echo(line)
    if not yes:
        typer.confirm(_question(status, job), abort=True)
    drop_incarnation(store, status.model.incarnation)
    if observer.look().model is not None:
        raise StoreError(
            f"{url}: another model {status.model_name!r} was created meanwhile; it was not touched."
        )
    typer.echo(f"deleted {some(status.model.partitions, 'partition')}")


def _lines(status: StoreStatus, job: JobStatus | None) -> list[str]:
    """What would be deleted."""
    model = status.model
    assert model is not None
    used = sum(node.partition_bytes for node in status.nodes)
    lines = [
        f"model {model.name!r} in {status.url}: 2**{model.bits} slots in "
        f"{some(model.partitions, 'partition')}, {size(used)}"
    ]
    if model.state != "ready":
        lines.append(
            {"creating": "its creation", "dropping": "its removal"}[model.state] + " is not finished"
        )
    if job is None:
        return [*lines, status.problem or "no job is on its board"]
    from ctr.cli.ps.status_lines import state_text, trained_text

    facts = [state_text(job), trained_text(job), some(len(job.live_workers), "live worker")]
    return [*lines, f"job {job.facts.id}: {', '.join(filter(None, facts))}"]


def _question(status: StoreStatus, job: JobStatus | None) -> str:
    if job is None or not job.at_work:
        return f"Delete all of the model {status.model_name!r}?"
    from ctr.cli.ps.status_lines import state_text

    who = some(len(job.live_workers), "live worker") if job.live_workers else "its coordinator"
    return (
        f"The job {job.facts.id} is {state_text(job)}, with {who}: it will fail, and what it has learnt "
        f"since its last checkpoint is lost. Delete all of the model {status.model_name!r}?"
    )
