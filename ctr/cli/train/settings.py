"""`--settings FILE`: options of `ctr train` from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ctr.errors import DataError


def _take_settings(context: typer.Context, path: Path | None) -> Path | None:
    """Let the options in the file take the place of defaults; those on the command line take precedence."""
    if path is None:
        return None
    from ctr.tune import read_settings

    try:
        found = read_settings(path).options
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


def spec_with_settings(settings: Path | None, spec: str | None, inputs: Sequence[str]) -> str | None:
    """The spec of the job: the one given, or for raw rows the one that the file of settings names.

    Raises BadParameter when the settings belong to another spec than the one given, or the data set's.
    """
    if settings is None:
        return spec
    from ctr.features import is_dataset
    from ctr.features.spec import is_shipped
    from ctr.tune import read_settings

    found = read_settings(settings)
    if found.spec is None:
        return spec
    named = found.spec.beside(settings)
    dataset = next(filter(is_dataset, inputs), None)
    given = dataset or spec or named
    if given == named and not is_shipped(named) and not Path(named).exists():
        raise typer.BadParameter(
            f"{settings}: names the spec {named}, which is not there; put it back, or name it with --spec."
        )
    transform = _transform(given, scales_of(found.options.get("scale", ())))
    if transform == found.spec.transform:
        return spec if dataset else given
    wanted = f"{settings}: its settings belong to the spec {named} (transform {found.spec.transform[:12]})"
    if given == named:
        raise typer.BadParameter(
            f"{wanted}, which has changed since (now {transform[:12]}); restore it, or run `ctr tune` again."
        )
    remedy = "build it with that spec" if dataset else "leave out --spec"
    raise typer.BadParameter(
        f"{wanted}, not to that of {given} (transform {transform[:12]}); {remedy}, or run `ctr tune` on it."
    )


def _transform(spec: str, scales: dict[str, float]) -> str:
    """The fingerprint of this spec with the scales that it can have, before it learns from data."""
    from ctr.features import load_spec
    from ctr.features.spec import unfitted_fingerprint

    loaded = load_spec(spec)
    return unfitted_fingerprint(loaded.with_scales({k: v for k, v in scales.items() if k in loaded.names}))


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
        help="Options from this file, as `ctr tune` writes it; those on the command line take precedence.",
    ),
]
