"""`taking`: a function of a Python program whose arguments are settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from textwrap import fill
from typing import ParamSpec, TypeVar

from ctr.settings.setting import Settings

P = ParamSpec("P")
T = TypeVar("T")


def taking(settings: type[Settings], *, but: Collection[str]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Give a function the signature and the docstring of the settings that it takes as `**settings`.

    `but`: those that it has arguments of its own for, or does not take.
    """

    def described(function: Callable[P, T]) -> Callable[P, T]:
        chosen = {name: each for name, each in settings.described().items() if name not in but}
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        given = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.get_default(call_default_factory=True),
                annotation=field.annotation,
            )
            for name, (field, _) in chosen.items()
        ]
        function.__signature__ = signature.replace(parameters=[*own, *given])  # type: ignore[attr-defined]
        lines = [
            fill(
                f"{name}: {setting.text}".replace("\\[", "["),
                100,
                initial_indent="    ",
                subsequent_indent="        ",
            )
            for name, (_, setting) in chosen.items()
        ]
        function.__doc__ = "\n".join([inspect.cleandoc(function.__doc__ or ""), "", "Settings:", *lines])
        return function

    return described
