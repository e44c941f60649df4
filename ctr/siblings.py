"""`require_siblings`: the packages that come with `ctr` have common names, which other folders have, too."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder  # importlib.util would take 10 ms, of which `ctr --help` has none

_ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def require_siblings(*names: str) -> None:
    """ImportError when Python finds, or has found, another package than ours under one of these names.

    Nothing is imported. For `python -m ctr` the current folder is taken off the path first, unless it holds
    `ctr` itself: the command `ctr` does not look there either.
    """
    started_as_module = sys.argv[:1] == ["-m"]
    if started_as_module and sys.path[:1] == [os.getcwd()] and os.path.realpath(sys.path[0]) != _ROOT:
        del sys.path[0]
    for name in names:
        found = _place_of(name)
        if os.path.realpath(found) != os.path.join(_ROOT, name, "__init__.py"):
            raise ImportError(
                f"ctr needs its own package {name!r} in {_ROOT}, but Python finds {found or 'nothing'} under "
                "that name; rename that, or take its folder off sys.path and PYTHONPATH"
            )


def _place_of(name: str) -> str:
    """The file, or the folder without `__init__.py`, that `import name` means; empty if there is none."""
    loaded = sys.modules.get(name)
    spec = PathFinder.find_spec(name) if loaded is None else getattr(loaded, "__spec__", None)
    if spec is None:
        return str(getattr(loaded, "__file__", None) or "")
    return spec.origin or next(iter(spec.submodule_search_locations or ()), "")
