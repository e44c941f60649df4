"""Options and arguments that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import MISSING, fields
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from ctr.errors import StoreError

T = TypeVar("T")


def taking(options: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Make a command of a function whose one argument is a dataclass: its fields are the options.

    Typer reads them off the signature that the command is given here.
    """
    hints = get_type_hints(options, include_extras=True)
    parameters = [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(options)  # type: ignore[arg-type]  # which is of dataclasses
    ]

    def command_of(function: Callable[[T], None]) -> Callable[..., None]:
        @wraps(function)
        def command(**given: Any) -> None:
            function(options(**given))

        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # typeshed has no such
        return command

    return command_of


class OnBadRows(StrEnum):
    """What to do with a row that cannot be read."""

    FAIL = "fail"
    SKIP = "skip"
    QUARANTINE = "quarantine"


def check_inputs(inputs: list[str] | None) -> list[str] | None:
    """Refuse paths that are not there; patterns and URIs are looked up when they are opened."""
    from ctr.features import is_glob, is_uri

    for text in inputs or ():
        if text != "-" and not is_uri(text) and not is_glob(text) and not os.path.exists(text):
            raise typer.BadParameter(f"Path {text!r} does not exist.")
    return inputs


_RAW_INPUTS = (
    "Raw files, perhaps compressed: paths, folders, patterns such as `'logs/day=*/*.csv'`, URIs such as"
    " s3://bucket/logs, or - for standard input."
)

RawInputs = Annotated[
    list[str],
    typer.Argument(metavar="INPUT", help=_RAW_INPUTS, callback=check_inputs, show_default=False),
]

Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT",
        help=f"{_RAW_INPUTS} Or one hashed data set.",
        callback=check_inputs,
        show_default=False,
    ),
]

ModelOption = Annotated[
    Path, typer.Option(metavar="DIR", help="Folder of the trained model.", show_default=False)
]

ValuesOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Raw rows whose values give features their texts: a path, folder, pattern or URI. They need no "
        "label, and may lack columns. Or a hashed data set, which names the field of each feature.",
    ),
]

BadRowsOption = Annotated[
    OnBadRows,
    typer.Option(
        help="What to do with a row that cannot be read: stop there (fail), count it and leave it out "
        "(skip), or also write it to a file beside the output (quarantine)."
    ),
]


MaxBadFraction = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=1.0,
        help="With skip or quarantine: fail when more of the rows are bad than this. Up to 10 bad rows "
        "are always allowed, if they are at most half of the rows.",
    ),
]


def _check_json(path: Path | None) -> Path | None:
    if path is not None and str(path) != "-" and not os.access(path.parent, os.W_OK):
        raise typer.BadParameter(f"{path.parent} is not a folder that can be written to.")
    return path


JsonOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write a summary as JSON here; - is standard output.",
        allow_dash=True,
        dir_okay=False,
        callback=_check_json,
    ),
]


class Calibrate(StrEnum):
    """How probabilities are fitted to rows."""

    ISOTONIC = "isotonic"
    PLATT = "platt"


def finite(value: float | None) -> float | None:
    """Refuse `nan` and `inf`, which a range without end lets pass."""
    if value is not None and not isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


def store_url(url: str) -> str:
    """Refuse what names no store."""
    from ctr.ps import require_store_url

    try:
        require_store_url(url)
    except StoreError as error:
        raise typer.BadParameter(str(error)) from None
    return url


def redis_url(url: str) -> str:
    """Refuse what names no store in Redis."""
    from ctr.ps import parse_redis_url

    try:
        parse_redis_url(url)
    except StoreError as error:
        raise typer.BadParameter(str(error)) from None
    return url
