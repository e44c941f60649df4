"""`ctr ps export`: the model artifact from a live store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ctr.cli.options import JsonOption
from ctr.cli.ps.status import StoreOption
from ctr.cli.reporting import report, stopping


def export(
    store: StoreOption,
    model: Annotated[
        Path,
        typer.Option(
            "--out",
            "--model",
            metavar="DIR",
            help="Folder for the model; a model that is there is replaced.",
            show_default=False,
        ),
    ],
    json: JsonOption = None,
) -> None:
    """Save the model that a store holds, while its job is running or after it has failed.

    Transform and optimizer are those of the job, which is not disturbed; dictionary and windows are those of
    its data set, if that is found here at the same path. The log loss shown is that of the
    workers' reports, which may be some chunks behind.

    Example: `ctr ps export --store redis://localhost:6379/0?model=ads --out snapshot`
    """
    from ctr.cli.tables import metric_lines
    from ctr.jobs import export_model
    from ctr.outputs import printable, require_no_part
    from ctr.ps import parse_redis_url

    require_no_part(json, model)
    with stopping(f"{model} was not written."):
        found = export_model(parse_redis_url(store), model)
    job, weights = found.job, found.model.linear.weights.size
    assert job.plan is not None  # the description could be read
    training = found.model.manifest["training"]
    lines = [
        f"job {job.facts.id} is {job.view.state}: "
        f"{job.examples:,} of {job.examples_in_all:,} examples trained, "
        f"pass {job.passes_begun} of {job.plan.passes}",
        *(metric_lines({"progressive validation": found.progressive}) if found.progressive.examples else []),
        f"model {found.model.id} is in {model}: {weights:,} non-zero weights",
        *(f"warning: {text}" for text in found.warnings),
    ]
    facts = {
        "model": found.model.id,
        "saved_to": printable(model),
        "nonzero_weights": int(weights),
        "job": job.facts.id,
        "state": job.view.state,
        "examples": training["examples"],
        "rows": training["rows"],
        "progressive": found.progressive.to_json(),
        "warnings": found.warnings,
    }
    report(lines, facts, json)
