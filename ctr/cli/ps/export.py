"""`ctr ps export`: saves the model in a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ctr.cli.reporting import Report, stopping

if TYPE_CHECKING:
    from ctr.settings import ModelInRedis, Setting


def export(
    report: Report,
    store: ModelInRedis,
    model: Annotated[
        Path,
        Setting(
            "Folder for the model; an existing model is replaced.",
            metavar="DIR",
            options=("--out", "--model"),
        ),
    ],
) -> None:
    """Save the model that a store holds, while its job is running or after it has failed.

    The job is not disturbed. The model has the transform and optimizer of the job, and the dictionary and
    windows of its data set, if that exists here at the same path. The log loss comes from the workers'
    reports, which may be some chunks behind.

    Example: `ctr ps export --store redis://localhost:6379/0?model=ads --out snapshot`
    """
    from ctr.cli.ps.status_lines import state_text, trained_text
    from ctr.cli.tables import metric_lines
    from ctr.jobs import export_model
    from ctr.outputs import printable
    from ctr.ps import parse_redis_url

    with stopping(f"{model} was not written."):
        exported = export_model(parse_redis_url(store), model)
    job, weights = exported.job, exported.model.linear.weights.size
    training = exported.model.manifest["training"]
    lines = [
        f"job {job.facts.id} is {state_text(job)}: {trained_text(job)}",
        *(
            metric_lines({"progressive validation": exported.progressive})
            if exported.progressive.examples
            else []
        ),
        f"model {exported.model.id} is in {model}: {weights:,} non-zero weights",
        *(f"warning: {text}" for text in exported.warnings),
    ]
    facts = {
        "model": exported.model.id,
        "saved_to": printable(model),
        "nonzero_weights": int(weights),
        "job": job.facts.id,
        "state": job.view.state,
        "examples": training["examples"],
        "rows": training["rows"],
        "progressive": exported.progressive.to_json(),
        "warnings": exported.warnings,
    }
    report(lines, facts)
