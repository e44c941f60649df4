"""The error tree, and how messages name a setting. A leaf: it imports nothing of ours, so everybody may."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class CtrError(Exception):
    """Root of every error that a user can cause or fix; its message is shown without a traceback."""


class SpecError(CtrError):
    """A feature spec is malformed, or does not fit the data it is applied to."""


class DataError(CtrError):
    """Input rows or files are missing, unreadable or malformed."""


class StoreError(CtrError):
    """A parameter store cannot be reached, refuses, or would lose updates."""


class EngineError(CtrError):
    """An engine cannot be started or reached, or its processes are not fit to run tasks."""


class ModelError(CtrError):
    """A model folder is missing, torn, of another format, or does not match its data."""


class SettingError(ModelError):
    """A setting is unknown, has a value that it cannot have, or does not go with another one."""


class _Naming:
    """How this process names settings."""

    as_options = False


@contextmanager
def naming_options() -> Iterator[None]:
    """Until the `with` block ends, messages name settings as options: this process is the command line."""
    before, _Naming.as_options = _Naming.as_options, True  # of the process: any thread may have a message
    try:
        yield
    finally:
        _Naming.as_options = before


def named(setting: str, *values: object) -> str:
    """A setting as its user writes it, such as `on_bad_rows`, and values that it may have.

    On the command line `--on-bad-rows skip or quarantine`, in Python `on_bad_rows="skip" or "quarantine"`.
    """
    if _Naming.as_options:
        option = f"--{setting.replace('_', '-')}"
        return f"{option} {' or '.join(map(str, values))}" if values else option
    shown = [f'"{value}"' if isinstance(value, str) else f"{value}" for value in values]
    return f"{setting}={' or '.join(shown)}" if shown else setting


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Where the first complaint is, such as `training.chunks`, and what is wrong there."""
    first = error.errors(include_url=False)[0]
    # Pydantic puts the one before what a validator says, and the other in place of the value.
    problem = first["msg"].removeprefix("Value error, ")
    if problem.startswith("Input "):
        problem = f"{first['input']!r:.80}{problem.removeprefix('Input')}"
    return ".".join(map(str, first["loc"])), problem
