"""`first_problem`: what pydantic complains of, as our messages tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Where the first complaint is, such as `training.chunks`, and what is wrong there."""
    first = error.errors(include_url=False)[0]
    # Pydantic puts the one before what a validator says, and the other in place of the value.
    problem = first["msg"].removeprefix("Value error, ")
    if problem.startswith("Input "):
        problem = f"{first['input']!r:.80}{problem.removeprefix('Input')}"
    return ".".join(map(str, first["loc"])), problem
