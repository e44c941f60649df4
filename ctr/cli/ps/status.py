"""`ctr ps status`: the nodes, the model and the job of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field

from ctr.cli.reporting import Report, stopping
from ctr.cli.tables import some
from ctr.defaults import MOST_SECONDS

if TYPE_CHECKING:
    from ctr.distributed import JobStatus
    from ctr.ps.status import StoreObserver, StoreStatus
    from ctr.settings import ModelInRedis, Setting


def status(
    report: Report,
    store: ModelInRedis,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")] = False,
    every: Annotated[
        float,
        Field(ge=0.1, le=MOST_SECONDS),
        Setting("Seconds between two updates of --watch.", metavar="SECONDS"),
    ] = 2.0,
) -> None:
    """Show the nodes of a store, the distribution of the model's partitions, and the progress of its job.

    *Clock* is the number of chunks that a worker has pushed, *lag* how many it is behind the fastest. Only
    reads, and does not disturb the job. Exit code 1 if there is no model, if it is being dropped, or if a
    part of it cannot be reached.

    Examples:

    - `ctr ps status --store redis://localhost:6379/0?model=ads`
    - `ctr ps status --store redis+cluster://10.0.0.7:6379,10.0.0.8:6379 --watch`
    """
    if watch and report.json is not None:
        raise typer.BadParameter("--json does not go with --watch; leave out one of them.")
    with stopping("Nothing was changed."):
        try:
            from ctr.ps import parse_redis_url
            from ctr.ps.status import StoreObserver

            observer = StoreObserver(parse_redis_url(store))
            if watch:
                _watch(observer, every)
            else:
                _show(observer, report)
        except KeyboardInterrupt:
            if not watch:
                raise


def look(observer: StoreObserver) -> tuple[StoreStatus, JobStatus | None]:
    """The store and its job. Raises StoreError if the store cannot be reached."""
    from ctr.distributed import job_status, needed_reports

    store = observer.look()
    if store.board is None:
        return store, None
    return store, job_status(store.board, observer.reports(needed_reports(store.board)))


def _show(observer: StoreObserver, report: Report) -> None:
    from ctr.cli.ps.status_lines import status_lines
    from ctr.distributed import status_to_json
    from ctr.errors import StoreError

    store, job = look(observer)
    report(status_lines(store, job), status_to_json(store, job))
    if (trouble := _trouble(store)) is not None:
        raise StoreError(f"{store.url}: {trouble}.")


def _watch(observer: StoreObserver, every_s: float) -> None:
    """Show the status repeatedly: in place on a terminal, one after the other elsewhere."""
    from time import sleep, strftime

    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from ctr.cli.ps.status_lines import status_lines
    from ctr.errors import StoreError

    def lines() -> list[str]:
        head = f"{strftime('%H:%M:%S')}, every {every_s:g} s; Ctrl-C ends"
        try:
            store, job = look(observer)
        except StoreError as error:  # it may come back
            return [head, f"error: {error}"]
        trouble = _trouble(store)
        return [head, *status_lines(store, job), *([] if trouble is None else [f"error: {trouble}"])]

    console = Console()
    if not console.is_terminal:
        while True:
            typer.echo("\n".join([*lines(), ""]))
            sleep(every_s)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            shown = Text("\n".join(lines()), no_wrap=True, overflow="ellipsis")
            live.update(shown, refresh=True)
            sleep(every_s)


def _trouble(store: StoreStatus) -> str | None:
    """Why the model, or a part of it, cannot be used."""
    if store.problem is not None:
        return store.problem
    if store.model is None:
        return (
            f"there is no model {store.model_name!r} in this store; name another (?model=NAME), or start one "
            "with `ctr train --store`"
        )
    if store.model.state == "dropping":
        return "the model is being dropped; if that was interrupted, `ctr ps drop` finishes it"
    count = store.model.partitions
    if store.unreachable:
        return (
            f"{len(store.unreachable):,} of {some(count, 'partition')} cannot be reached; bring their node "
            "back, or let a replica take over"
        )
    if store.lost:
        return (
            f"{len(store.lost):,} of {some(count, 'partition')} are gone, as their node has lost its data; "
            "restore the node, or drop the model and start again"
        )
    return None
