"""`ctr ps`: parameters that live in Redis."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="Look after parameters in Redis.")


@app.callback()
def _group() -> None:
    """Keeps `drop` a command of its own while it is the only one."""


@app.command()
def drop(
    store: Annotated[
        str, typer.Option(metavar="URL", help="Redis that holds the model.", show_default=False)
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a model's parameters from Redis, such as those that a failed job left.

    `ctr train` removes its own when it ends well. Saved models are not touched.

    Example: `ctr ps drop --store redis://localhost:6379/0?model=ads`
    """
    from ps import drop_parameters, without_password

    if not yes:
        typer.confirm(f"Delete all parameters in {without_password(store)}?", abort=True)
    typer.echo(f"deleted {drop_parameters(store)} partitions")
