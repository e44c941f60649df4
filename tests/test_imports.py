"""The house rules on imports, read from the sources."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "features": {"features"},
    "ps": {"ps"},
    "ctr": {"ctr", "features", "ps"},
    "api": {"api", "ctr", "features"},
}
ERRORS = "ctr.errors"
NUMBA_CACHE = "ctr.numba_cache"
SHARED = {ERRORS, NUMBA_CACHE}
"""The modules of ctr that every package may import: one root of the errors, one cache of the kernels."""
LEAVES = {*SHARED, "ctr.siblings"}
SERVE = "ctr.cli.serving"
"""The command line is where the doors meet: `ctr serve` loads api when it runs."""
OURS = {*MAY_IMPORT, "tests", "benchmarks", "docs", "docker", "examples"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(p): p for package in MAY_IMPORT for p in sorted((ROOT / package).rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(), str(path)) for name, path in SOURCES.items()}
INITS = sorted(name for name, path in SOURCES.items() if path.name == "__init__.py")


def package_of(name: str) -> str:
    return name.partition(".")[0]


def imported(nodes: Iterator[ast.AST] | list[ast.stmt]) -> set[str]:
    """The modules that these statements import; `from a import b` is `a.b` where that is a module of ours."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                names.add(inner if inner in SOURCES else node.module)
    return names


KERNEL_MODULES = sorted(
    name
    for name, tree in TREES.items()
    if name != NUMBA_CACHE
    and {"numba", NUMBA_CACHE} & {*imported(tree.body), *map(package_of, imported(tree.body))}
)


def top_level_names(tree: ast.Module, only_ours: bool = False) -> set[str]:
    """What a module defines or imports (from us, if `only_ours`) at its top level, also under an `if`."""
    names: set[str] = set()
    body = list(tree.body)
    while body:
        node = body.pop()
        if isinstance(node, ast.If):
            body += node.body
        elif isinstance(node, ast.Import | ast.ImportFrom):
            if only_ours and not any(package_of(name) in OURS for name in imported([node])):
                continue
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_imports_run_one_way(module: str) -> None:
    package = package_of(module)
    first_party = {name for name in imported(ast.walk(TREES[module])) if package_of(name) in OURS}
    wrong = {name for name in first_party if package_of(name) not in MAY_IMPORT[package]} - SHARED
    if module == SERVE:
        wrong -= {"api"} - imported(TREES[module].body)
    assert not wrong, f"{module} imports {sorted(wrong)}; {package} may import {sorted(MAY_IMPORT[package])}"


@pytest.mark.parametrize("module", sorted(LEAVES))
def test_a_leaf_imports_nothing_of_ours(module: str) -> None:
    assert not {package_of(name) for name in imported(ast.walk(TREES[module]))} & OURS


def test_the_error_tree_imports_nothing() -> None:
    assert imported(ast.walk(TREES[ERRORS])) <= {"__future__"}


def test_importing_the_errors_loads_no_other_package() -> None:
    # ctr/__init__ runs whenever features or ps import the errors.
    loaded = {name for name in imported(TREES["ctr"].body) if package_of(name) in OURS}
    assert loaded <= {ERRORS, "ctr.siblings"}


def test_there_are_kernels_to_look_at() -> None:
    assert {"ps.kernels", "ps.table_kernels"} <= set(KERNEL_MODULES)


@pytest.mark.parametrize("module", KERNEL_MODULES)
def test_kernel_modules_import_only_numpy_and_numba(module: str) -> None:
    # llvmlite is the compiler inside Numba. A kernel may call one of another such module: what that loads in
    # the end is still only these.
    allowed = {"numpy", "numba", "llvmlite", *sys.stdlib_module_names}
    others = {name for name in imported(ast.walk(TREES[module])) if package_of(name) not in allowed}
    assert others <= {NUMBA_CACHE, *KERNEL_MODULES}, (
        f"{module} holds Numba kernels and imports {sorted(others)}"
    )


@pytest.mark.parametrize("module", KERNEL_MODULES)
def test_kernels_are_compiled_with_our_cache(module: str) -> None:
    names = {
        alias.name
        for node in ast.walk(TREES[module])
        if isinstance(node, ast.ImportFrom) and node.module == "numba"
        for alias in node.names
    }
    assert not names & {"njit", "jit", "vectorize", "guvectorize"}, f"take njit from {NUMBA_CACHE}"


@pytest.mark.parametrize("package", INITS)
def test_all_names_what_a_package_exports(package: str) -> None:
    tree = TREES[package]
    listed = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == ["__all__"]
    ]
    exported = top_level_names(tree, only_ours=True) - {"__all__"}
    public = {name for name in exported if not name.startswith("_")}
    names = listed[0] if listed else []
    assert len(names) == len(set(names))
    assert {name for name in names if not name.startswith("_")} == public
    assert set(names) <= exported


@pytest.mark.parametrize("package", INITS)
def test_packages_only_re_export(package: str) -> None:
    defined = [n.name for n in TREES[package].body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    assert [name for name in defined if name not in {"__getattr__", "__dir__"}] == []


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_names_imported_from_our_modules_exist_there(module: str) -> None:
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.ImportFrom) and node.module in SOURCES:
            there = top_level_names(TREES[node.module])
            modules = {name.rpartition(".")[2] for name in SOURCES if name.rpartition(".")[0] == node.module}
            missing = {alias.name for alias in node.names} - there - modules
            assert not missing, f"{module} imports {sorted(missing)} from {node.module}"
