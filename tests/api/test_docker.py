"""The images are not built here; these tests keep their files in step with the package."""

from __future__ import annotations

import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_the_image_copies_every_package() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    packages = build["targets"]["wheel"]["packages"]
    top = {name.split(".")[0] for name in packages}
    copied = {words[1] for words in _instructions("COPY") if len(words) == 3}
    assert top | {"README.md"} <= copied
    ignore = (ROOT / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    assert {f"!{name}" for name in copied - {"--from=build"}} <= set(ignore)


def test_the_image_installs_the_pinned_set() -> None:
    installs = [" ".join(words) for words in _instructions("RUN") if "install" in words]
    assert installs
    assert all("-c constraints.txt" in line for line in installs)


def test_compose_starts_the_image_to_serve_and_to_train() -> None:
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    assert set(services) == {"train", "worker", "redis", "serve"}
    assert services["serve"]["command"][0] == "serve"
    assert services["worker"]["command"][0] == "worker"
    for service in (services[name] for name in ("train", "worker", "serve")):
        assert service["build"] == {"context": "..", "dockerfile": "docker/Dockerfile"}
        assert any(":/data" in volume for volume in service["volumes"])


def _instructions(verb: str) -> list[list[str]]:
    text = (ROOT / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    return [words for line in text.splitlines() if (words := line.split()) and words[0] == verb]
