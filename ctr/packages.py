"""`require_packages`: a clear word about what is not installed, before any work is done."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from ctr.errors import DataError


def require_packages(what: str, packages: Mapping[str, str], *, otherwise: str = "") -> None:
    """Raise DataError unless the modules are there that `what` needs: by module, what pip calls its package.

    `otherwise`: what can be done without them.
    """
    missing = [package for module, package in packages.items() if find_spec(module) is None]
    if missing:
        named, is_ = " and ".join(missing), "are" if len(missing) > 1 else "is"
        raise DataError(
            f"{what} needs {named}, which {is_} not installed: pip install {' '.join(missing)}{otherwise}."
        )
