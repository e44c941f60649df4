"""`--settings FILE`: options of `ctr train` from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ctr.errors import DataError


def _take_settings(context: typer.Context, path: Path | None) -> Path | None:
    """Let the options in the file take the place of defaults: what the command line says is stronger."""
    if path is None:
        return None
    from ctr.tune import read_settings

    try:
        found = read_settings(path)
    except DataError as error:
        raise typer.BadParameter(str(error)) from None
    names = {option: str(each.name) for each in context.command.params for option in each.opts}
    known = {name: names[f"--{name}"] for name in found if f"--{name}" in names and name != "settings"}
    if unknown := [name for name in found if name not in known]:
        with_hyphens = unknown[0].replace("_", "-")
        known_so = with_hyphens != unknown[0] and f"--{with_hyphens}" in names
        remedy = f"write {with_hyphens}" if known_so else "take it out of `options`"
        raise typer.BadParameter(f"{path}: `ctr train` has no option --{unknown[0]}; {remedy}.")
    context.default_map = {known[name]: value for name, value in found.items()}
    return path


def with_scales_of_file(context: typer.Context, texts: list[str] | None) -> list[str]:
    """Those of the file before these: `--scale` changes one of them, and leaves the others."""
    of_file = (context.default_map or {}).get("scale", ())
    return [*of_file, *(texts or ())]


def scales_of(texts: Sequence[str]) -> dict[str, float]:
    """`["site=0.5"]` as `{"site": 0.5}`; the last of a name counts."""
    found = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            found[name] = float(number)
        except ValueError:
            raise typer.BadParameter(f"--scale {text!r}: write NAME=NUMBER, such as site=0.5.") from None
    return found


SettingsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        exists=True,
        dir_okay=False,
        is_eager=True,
        callback=_take_settings,
        help="Options from this file, as `ctr tune` writes it; those on the command line are stronger.",
    ),
]
