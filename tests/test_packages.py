"""What the contracts in pyproject.toml cannot say of imports: public names, their places, and kernels."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from ctr.jit import SOURCE_NAMES

ROOT = Path(__file__).parents[1]
PACKAGES = ("ctr", "ctr.api", "ctr.features", "ctr.ps")
JIT = "ctr.jit"

pytestmark = pytest.mark.xdist_group("packages")  # all sources are parsed once


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {  # ctr/api, ctr/features and ctr/ps are links
    module_name(Path(folder, name)): Path(folder, name)
    for folder, _, files in sorted(os.walk(ROOT / "ctr", followlinks=True))
    for name in sorted(files)
    if name.endswith(".py")
}
INITS = sorted(name for name, path in SOURCES.items() if path.name == "__init__.py")


@cache
def tree(name: str) -> ast.Module:
    """Of a module's source."""
    return ast.parse(SOURCES[name].read_text(), str(SOURCES[name]))


@cache
def imports(name: str) -> frozenset[str]:
    """The modules that a module imports, anywhere; `from a import b` is `a.b` where that is one of ours."""
    found = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are absolute"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in SOURCES and inner.endswith("kernels") else node.module)
    return frozenset(found)


def package_of(name: str) -> str:
    """The package, within `ctr`, `ctr.api`, `ctr.features` or `ctr.ps`, that a module belongs to."""
    within = (package for package in PACKAGES if f"{name}.".startswith(f"{package}."))
    package = max(within, key=len, default=name.partition(".")[0])
    inner = ".".join(name.split(".")[: package.count(".") + 2])
    return inner if inner in INITS else package


@cache
def kernels() -> frozenset[str]:
    """The modules that hold kernels, or what kernels are made of."""
    return frozenset(
        name
        for name in SOURCES
        if package_of(name) != JIT and (f"{name}.py".endswith(SOURCE_NAMES) or compiles(name))
    )


def compiles(name: str) -> bool:
    """Whether a module imports what makes kernels."""
    return "numba" in imports(name) or any(
        isinstance(node, ast.ImportFrom)
        and node.module == JIT
        and {"njit", "intrinsic"} & {alias.name for alias in node.names}
        for node in ast.walk(tree(name))
    )


def test_there_is_something_to_look_at() -> None:
    assert {"ctr.ps.kernels", "ctr.ps.memory.table_kernels", "ctr.features.text.hashing"} <= kernels()
    assert {"ctr.ps", "ctr.ps.redis", "ctr.learn", "ctr.features.text"} <= set(INITS)


def test_others_import_public_names_alone() -> None:
    # A kernel imports kernels, wherever they are: what else an `__init__.py` loads is not for it.
    past = {
        (name, other)
        for name in SOURCES
        for other in imports(name)
        if package_of(other) != package_of(name)
        and other in SOURCES
        and other not in INITS
        and package_of(other) not in {*PACKAGES, "ctr.cli"}
        and other not in kernels()
    }
    assert not past


def test_kernels_import_only_numpy_numba_and_kernels() -> None:
    # llvmlite is the compiler inside Numba.
    allowed = {"numpy", "numba", "llvmlite", *sys.stdlib_module_names}
    for name in kernels():
        ours = {other for other in imports(name) if other.partition(".")[0] not in allowed}
        assert ours <= {JIT, *kernels()}, name


def test_the_cache_knows_the_sources_of_all_kernels() -> None:
    assert not [name for name in kernels() if not f"{name}.py".endswith(SOURCE_NAMES)]


def test_kernels_are_compiled_with_our_cache() -> None:
    for name in kernels():
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.ImportFrom) and node.module == "numba":
                taken = {alias.name for alias in node.names}
                assert not taken & {"njit", "jit", "vectorize", "guvectorize"}, f"{name}: use {JIT}"


@pytest.mark.parametrize("package", INITS)
def test_a_package_exports_what_it_names(package: str) -> None:
    if package in {"ctr", "ctr.cli.model", "ctr.cli.ps"}:
        return
    nodes = list(tree(package).body)
    nodes += [inner for node in nodes if isinstance(node, ast.If) for inner in node.body]
    assert not [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    exported = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and f"{node.module}".startswith(f"{package}.")
        for alias in node.names
    }
    loaded = import_module(package)
    for name in SOURCES:  # a module would hide a public name like its own
        if name.startswith(f"{package}."):
            import_module(name)
    assert not [name for name in exported if isinstance(getattr(loaded, name), ModuleType)]


def test_a_name_is_imported_from_its_package_or_from_where_it_is_defined() -> None:
    past = set()
    for name in SOURCES:
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.ImportFrom) and node.module in SOURCES and node.module not in INITS:
                defined = set(definitions(node.module))
                past |= {(name, node.module, a.name) for a in node.names if a.name not in defined}
    assert not past


def definitions(name: str) -> Iterator[str]:
    """What a module defines at its top level."""
    for node in tree(name).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))


def test_the_files_that_are_named_in_contributing_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:api|ctr|features|ps|tests)/[a-z\d_/]+\.py)`", text))
    assert len(named) > 40
    assert not [name for name in named if not (ROOT / name).exists()]
