"""`lazy_face`: a package whose names load their modules when somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_face(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a package (PEP 562): `modules` has names separated by blanks, by their module.

    For faces that would load what most callers do not need, such as the Redis client for training in memory.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{module_of[name]}"), name)

    return load
