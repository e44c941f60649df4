"""`require_packages`: a clear error about missing or broken packages before any work is done."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from ctr.errors import DataError


def require_packages(what: str, packages: Mapping[str, str], *, otherwise: str = "") -> None:
    """Raises DataError unless the modules that `what` needs can be imported; `packages`: their names for pip.

    `otherwise`: the end of the message, which may name an alternative.
    """
    missing = []
    for module, package in packages.items():
        try:
            import_module(module)
        except Exception as error:  # a broken package may raise anything
            if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
                missing.append(package)
                continue
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise DataError(
                f"{what} needs {package}, which is installed but cannot be imported ({reason}): pip install "
                f"--force-reinstall {package}{otherwise}."
            ) from error
    if missing:
        named, is_ = " and ".join(missing), "are" if len(missing) > 1 else "is"
        raise DataError(
            f"{what} needs {named}, which {is_} not installed: pip install {' '.join(missing)}{otherwise}."
        )
