"""All exceptions, the warnings, and how messages name settings.

It imports nothing of ours, so any module may import it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class CtrError(Exception):
    """Base class of all errors that a user can cause or fix; the message is shown without a traceback."""


class SpecError(CtrError):
    """A feature spec is malformed, or does not fit the data it is applied to."""


class DataError(CtrError):
    """Input rows or files are missing, unreadable or malformed."""


class StoreError(CtrError):
    """A parameter store cannot be reached, refuses a request, or would lose updates."""


class EngineError(CtrError):
    """An engine cannot be started or reached, or its processes cannot run tasks."""


class ModelError(CtrError):
    """A model folder is missing, incomplete or of another format, or does not match its data."""


class SettingError(ModelError):
    """A setting is unknown, has an invalid value, or cannot be combined with another one."""


class CtrWarning(UserWarning):
    """What a job of a Python program found that its user should know: commands print it as `warning: …`."""


class _Naming:
    """How this process names settings."""

    as_options = False


@contextmanager
def naming_options(*, as_options: bool = True) -> Iterator[None]:
    """In the `with` block, messages name settings as options, for the command line, or as in Python."""
    # Of the whole process, as any thread may raise errors.
    before, _Naming.as_options = _Naming.as_options, as_options
    try:
        yield
    finally:
        _Naming.as_options = before


def names_options() -> bool:
    """Whether messages name settings as options, which other processes of a job have to be told."""
    return _Naming.as_options


def named(setting: str, *values: object) -> str:
    """A setting as the user writes it, such as `on_bad_rows`, with possible values.

    On the command line `--on-bad-rows skip or quarantine`, in Python `on_bad_rows="skip" or "quarantine"`.
    """
    if _Naming.as_options:
        option = f"--{setting.replace('_', '-')}"
        return f"{option} {' or '.join(map(str, values))}" if values else option
    shown = [f'"{value}"' if isinstance(value, str) else f"{value}" for value in values]
    return f"{setting}={' or '.join(shown)}" if shown else setting


def require_counts(**settings: int | None) -> None:
    """Raise SettingError for a setting that is neither None nor a whole number of at least 1."""
    for name, value in settings.items():
        if value is not None and not (isinstance(value, int) and value >= 1):
            raise SettingError(f"{named(name)} is {value!r}: give a whole number of at least 1.")


def path_of(name: str, value: object) -> Path:
    """An argument of a Python function as a path. Raises SettingError if it is neither text nor a path."""
    if not isinstance(value, str | os.PathLike):
        raise SettingError(f"{name} is {value!r:.80}: give a path.")
    return Path(value)


def first_problem(error: ValidationError) -> str:
    """The first problem and its place, such as `training.chunks: 'a' should be a valid integer`."""
    # The whole document, such as one that is no JSON, has no place.
    place = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))
    return f"{place:.200}: {problem_of(error)}" if place else problem_of(error)


def problem_of(error: ValidationError) -> str:
    """The first problem, without its place."""
    first = error.errors(include_url=False)[0]
    # Pydantic puts "Value error, " before a validator's message, and "Input" in place of the value.
    problem = first["msg"].removeprefix("Value error, ")
    if problem.startswith("Input "):
        problem = f"{first['input']!r:.80}{problem.removeprefix('Input')}"
    return problem
