"""`ctr models init`, `publish`, `label`, `rollback` and `remove`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ctr.cli.models.listing import RegistryOption
from ctr.cli.reporting import Report

_LabelOption = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="LABEL", help="Point this label to it, such as stable. Repeatable."),
]
_VersionArgument = Annotated[
    str,
    typer.Argument(metavar="VERSION", help="Its id, a prefix of the id, or a label."),
]
_LabelArgument = Annotated[str, typer.Argument(metavar="LABEL", help="Such as stable or canary.")]


def init(report: Report, registry: RegistryOption) -> None:
    """Create a registry without versions, in an empty or a new folder; an existing one is left alone.

    `ctr models publish` and `ctr train --publish` create one themselves in a new folder. They refuse a folder
    that is not a registry, and a new folder in an empty one, which could be the mount point of a file system
    that is not mounted.

    Example: `ctr models init --registry /mnt/models`
    """
    from ctr.registry import Registry

    Registry(registry).init()
    report([f"{registry} is a registry"], {"registry": registry})


def publish(
    report: Report,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a trained model.")],
    registry: RegistryOption,
    label: _LabelOption = None,
) -> None:
    """Add a trained model to a registry, as an immutable version with the model's id.

    Servers that follow a label (`ctr serve --registry`) switch to the version within two seconds.
    `ctr train --publish DIR@stable` does the same after training.

    Example: `ctr models publish model --registry models --label canary`
    """
    from ctr.registry import Registry

    version = Registry(registry).publish(model, label or ())
    labelled = f" as {', '.join(label)}" if label else ""
    report([f"published {version}{labelled} in {registry}"], {"version": version, "labels": label or []})


def label(report: Report, version: _VersionArgument, label: _LabelArgument, registry: RegistryOption) -> None:
    """Point a label to a version.

    Example: `ctr models label 3f2a91 stable --registry models`
    """
    from ctr.registry import Registry

    opened = Registry(registry)
    opened.label(label, version)
    version = opened.version_of(label)
    report([f"{label} is now {version}"], {"version": version, "label": label})


def rollback(report: Report, label: _LabelArgument, registry: RegistryOption) -> None:
    """Point a label back to its previous version.

    Example: `ctr models rollback stable --registry models`
    """
    from ctr.registry import Registry

    version = Registry(registry).rollback(label)
    report([f"{label} is {version} again"], {"version": version, "label": label})


def remove(report: Report, version: _VersionArgument, registry: RegistryOption) -> None:
    """Remove a version that no label points to.

    Example: `ctr models remove 3f2a91 --registry models`
    """
    from ctr.registry import Registry

    version = Registry(registry).remove(version)
    report([f"removed {version}"], {"version": version})
