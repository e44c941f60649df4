"""`ctr models init`, `publish`, `label`, `rollback` and `remove`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ctr.cli.models.listing import RegistryOption
from ctr.cli.reporting import Report

_LabelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--label", metavar="LABEL", help="Have this label, such as stable, point to it. Repeatable."
    ),
]
_VersionArgument = Annotated[
    str,
    typer.Argument(metavar="VERSION", help="Its id or the beginning of it, or a label that points to it."),
]
_LabelArgument = Annotated[str, typer.Argument(metavar="LABEL", help="Such as stable or canary.")]


def init(report: Report, registry: RegistryOption) -> None:
    """Start a registry without versions; one that is there stays as it is.

    `ctr models publish` and `ctr train --publish` start one by themselves in a new folder. They refuse a
    folder that is no registry, and a new one in an empty folder, as a mount point is empty while its file
    system is away.

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
    """Add a trained model to a registry, as an immutable version named by the model's id.

    Servers that follow a label (`ctr serve --registry`) change to the version within two seconds.
    `ctr train --publish DIR@stable` does the same after training.

    Example: `ctr models publish model --registry models --label canary`
    """
    from ctr.registry import Registry

    version = Registry(registry).publish(model, label or ())
    labelled = f" as {', '.join(label)}" if label else ""
    report([f"published {version}{labelled} in {registry}"], {"version": version, "labels": label or []})


def label(report: Report, version: _VersionArgument, label: _LabelArgument, registry: RegistryOption) -> None:
    """Have a label point to a version.

    Example: `ctr models label 3f2a91 stable --registry models`
    """
    from ctr.registry import Registry

    opened = Registry(registry)
    opened.label(label, version)
    version = opened.version_of(label)
    report([f"{label} is {version} now"], {"version": version, "label": label})


def rollback(report: Report, label: _LabelArgument, registry: RegistryOption) -> None:
    """Have a label point to the version that it pointed to before.

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
