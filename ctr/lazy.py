"""`lazy_package`: a package whose public names load their modules on first use."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def lazy_package(package: str, file: str) -> Callable[[str], object]:
    """The `__getattr__` of a package (PEP 562): the names that `file`, its `__init__.py`, imports for mypy.

    The imports are under `if TYPE_CHECKING:`. This is for packages that would otherwise load what most
    callers do not need, such as the Redis client for training in memory.
    """
    imports = [
        node for node in ast.walk(ast.parse(Path(file).read_text())) if isinstance(node, ast.ImportFrom)
    ]
    module_of = {alias.name: node.module for node in imports for alias in node.names}

    def load(name: str) -> object:
        module = module_of.get(name) or ""
        if module == package:
            return import_module(f"{package}.{name}")
        if not module.startswith(f"{package}."):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module), name)

    return load
