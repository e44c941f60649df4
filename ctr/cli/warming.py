"""`ctr warm-up`."""

from __future__ import annotations

from typing import Annotated

import typer

from ctr.cli.reporting import stopping


def warm_up(
    spec: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Only what this feature spec needs: a file, or the name of one that ships with ctr.",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Compile in so many processes at once.", show_default="one per core"),
    ] = None,
) -> None:
    """Compile kernels before they are needed, and keep them for all later commands.

    Commands compile what they need when they first run, which takes seconds; afterwards they load it. This
    command runs small jobs, in several processes at once, so that later commands find everything compiled.
    `make install` and the Docker image do so.

    Example: `ctr warm-up --spec criteo`
    """
    from time import monotonic

    from ctr.features import load_spec
    from ctr.jobs import run_small_jobs

    started = monotonic()
    with stopping("Some kernels are compiled."):
        run_small_jobs(None if spec is None else load_spec(spec), processes)
    typer.echo(f"kernels are compiled ({monotonic() - started:.0f} s)")
