"""The files in docker/, read as Docker Compose and Kubernetes read them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

DOCKER = Path(__file__).parents[2] / "docker"
SECRETS = {"CTR_REDIS_PASSWORD": "a password", "GRAFANA_PASSWORD": "another"}

_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?P<how>:-|:\?)?(?P<rest>[^}]*)\}")


class MissingVariableError(Exception):
    """Compose would stop with this message."""


def compose(variables: Mapping[str, str]) -> dict[str, Any]:
    """compose.yaml with its variables, as Compose interpolates them, and merged anchors."""

    def value(match: re.Match[str]) -> str:
        name, how, rest = match["name"], match["how"], match["rest"]
        if variables.get(name):
            return variables[name]
        if how == ":?":
            raise MissingVariableError(f"{name}: {rest}")
        return rest if how == ":-" else ""

    def interpolated(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: interpolated(each) for key, each in node.items()}
        if isinstance(node, list):
            return [interpolated(each) for each in node]
        return _VARIABLE.sub(value, node) if isinstance(node, str) else node

    document = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    services: dict[str, Any] = interpolated(document)
    return services


def manifests() -> list[dict[str, Any]]:
    """All objects that kustomization.yaml names."""
    kustomization = yaml.safe_load((DOCKER / "k8s" / "kustomization.yaml").read_text())
    return [
        document
        for name in kustomization["resources"]
        for document in yaml.safe_load_all((DOCKER / "k8s" / name).read_text())
    ]


def pod_of(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The template of a workload's pods; None: it is no workload."""
    spec = document.get("spec", {})
    template: dict[str, Any] | None = spec.get("jobTemplate", {}).get("spec", spec).get("template")
    return template


def container(kind: str, name: str) -> dict[str, Any]:
    """The container of a workload."""
    (found,) = (each for each in manifests() if (each["kind"], each["metadata"]["name"]) == (kind, name))
    pod = pod_of(found)
    assert pod is not None
    (only,) = pod["spec"]["containers"]
    return dict(only)
