"""The images are not built here; these tests do what a build and a start would do with their files."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
IMPORT_ALL = """
import importlib, pkgutil, sys
for package in sys.argv[2:]:
    module = importlib.import_module(package)
    assert module.__file__.startswith(sys.argv[1]), module.__file__
    for found in pkgutil.walk_packages(module.__path__, package + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
"""


def test_what_the_image_copies_is_all_that_the_package_needs(tmp_path: Path) -> None:
    ignored = (ROOT / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    for _, *sources, target in _instructions("COPY"):
        for source in sources:
            if f"!{source}" not in ignored or target.startswith("/"):  # of another stage
                continue
            if (ROOT / source).is_dir():
                ignore = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / source, tmp_path / target, symlinks=True, ignore=ignore)
            else:
                shutil.copy(ROOT / source, tmp_path / target)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())
    assert (tmp_path / project["project"]["readme"]).exists()
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    words = [sys.executable, "-c", IMPORT_ALL, tmp_path, *packages]
    subprocess.run(words, check=True, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})


def test_every_dependency_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    needed, queue = set(), ["ctr"]
    while queue:
        for line in distribution(queue.pop()).requires or []:
            requirement = Requirement(line)
            name = canonicalize_name(requirement.name)
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if applies and name not in needed:
                needed.add(name)
                queue.append(name)
    assert needed >= {"numba", "llvmlite", "redis"}
    assert needed <= pinned


def _instructions(verb: str) -> list[list[str]]:
    text = (ROOT / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    return [words for line in text.splitlines() if (words := line.split()) and words[0] == verb]
