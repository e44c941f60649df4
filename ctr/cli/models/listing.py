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
    opened.require()
    versions, labels = opened.versions(), opened.labels()
    facts = {
        "versions": [{"id": item.id, "labels": item.labels, **_figures(item)} for item in versions],
        "labels": {name: entry.model_dump() for name, entry in labels.items()},
    }
    rows = [("version", "labels", "created", "rows", "log loss"), *map(_row, versions)]
    ids = {version.id for version in versions}
    problems = [
        f"label {name} points to {entry.version}, which does not exist"
        for name, entry in sorted(labels.items())
        if entry.version not in ids
    ]
    problems += [f"version {each.id} is damaged" for each in versions if not each.manifest]
    hint = [f"{registry} has no versions; `ctr models publish` adds one"]
    report((table(rows, "<<<>>") if versions else hint) + problems, facts)


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
    """Figures of the manifest: on the hold-out, if there was one."""
    manifest = version.manifest
    metrics = manifest.get("metrics", {})
    summary = metrics.get("holdout") or metrics.get("progressive") or {}
    return {
        "created": version.created,
        "rows": manifest.get("training", {}).get("rows"),
        "logloss": summary.get("logloss"),
    }
