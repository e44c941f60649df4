"""`ctr models list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctr.cli.reporting import Report
from ctr.cli.tables import table

if TYPE_CHECKING:
    from ctr.registry import Version

RegistryOption = Annotated[
    str,
    typer.Option(
        metavar="DIR",
        envvar="CTR_REGISTRY",
        help="The registry: a folder, or a URI such as s3://bucket/models.",
    ),
]


def list(report: Report, registry: RegistryOption) -> None:
    """List the versions of a registry, the latest first.

    Example: `ctr models list --registry models`
    """
    from ctr.registry import Registry

    opened = Registry(registry)
    versions, labels = opened.versions(), opened.labels()
    facts = {
        "versions": [{"id": each.id, "labels": each.labels, **_figures(each)} for each in versions],
        "labels": {name: entry.model_dump() for name, entry in labels.items()},
    }
    rows = [("version", "labels", "made", "rows", "log loss"), *map(_row, versions)]
    there = {each.id for each in versions}
    lost = [
        f"label {name} points to {entry.version}, which is not there"
        for name, entry in sorted(labels.items())
        if entry.version not in there
    ]
    nothing = [f"{registry} has no versions; `ctr models publish` adds one"]
    report((table(rows, "<<<>>") if versions else nothing) + lost, facts)


def _row(version: Version) -> tuple[str, ...]:
    figures = _figures(version)
    rows, loss = figures["rows"], figures["logloss"]
    return (
        version.id,
        ", ".join(version.labels),
        version.created.replace("T", " "),
        "-" if rows is None else f"{rows:,}",
        "-" if loss is None else f"{loss:.5f}",
    )


def _figures(version: Version) -> dict[str, Any]:
    """What its manifest says of training, and of the hold-out if there was one."""
    manifest = version.manifest
    metrics = manifest.get("metrics", {})
    of_rows = metrics.get("holdout") or metrics.get("progressive") or {}
    return {
        "created": version.created,
        "rows": manifest.get("training", {}).get("rows"),
        "logloss": of_rows.get("logloss"),
    }
