"""`ctr calibrate`."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from ctr.cli.reporting import Report, bad_rows_lines, peak_memory_mb, stopping, warn_of_layout
from ctr.cli.tables import CROSS_FITTED, metric_lines
from ctr.defaults import MOST_BAD
from ctr.outputs import beside, printable, require_writable

if TYPE_CHECKING:
    from ctr.settings import BadRows, Inputs, MaxBadFraction, Method, ModelFolder, Setting


def calibrate(
    report: Report,
    inputs: Inputs,
    model: ModelFolder,
    method: Annotated[
        Method,
        Setting(
            "isotonic (any rising curve; needs some thousand clicks) or platt (a line in log-odds).",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Folder for the calibrated model; a model that is there is replaced.",
        ),
    ],
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Put a new calibration in the place of one that the model has."),
    ] = False,
    on_bad_rows: BadRows = "fail",
    max_bad_fraction: MaxBadFraction = MOST_BAD,
) -> None:
    """Fit the probabilities of a trained model to labelled rows.

    Give rows that the model was not trained on. Its weights stay as they are; the calibrated model is a new
    one, whose manifest names the model it was made of and these inputs. It is `--calibrate` of `ctr train`
    for a model that is there already.

    Example: `ctr calibrate --model model tomorrow.tsv --method platt --out calibrated`
    """
    from ctr.features import BadRowPolicy, open_source
    from ctr.model import DIGESTS, load_model, require_model_or_nothing, require_uncalibrated, seen_rows
    from ctr.model import calibrate as fit
    from ctr.progress import progress

    require_model_or_nothing(out)
    require_writable(out)
    loaded = load_model(model)
    if not replace:
        require_uncalibrated(loaded, "--replace")
    policy = BadRowPolicy.of(on_bad_rows, max_bad_fraction, beside(out, ".bad-rows"))
    source = open_source(
        inputs,
        loaded.spec,
        on_bad_rows=policy,
        windows=loaded.windows_after(),
    )
    warn_of_layout(source)
    started = perf_counter()
    with stopping(f"{out} was not written."), progress("calibrating") as show:
        fitted = fit(loaded.linear, source, method, on_rows=lambda rows: show(rows, source.fraction_read))
        assert fitted is not None  # only an interrupt stops it
        found = fitted.of_saved(loaded, [printable(each) for each in inputs])
        found.save(out)
    warnings = []
    if seen_rows(loaded.manifest, found.manifest["calibrated"][DIGESTS]) == "trained":
        named = ", ".join(map(printable, inputs))
        warnings = [
            f"the model was trained on rows of {named}, so it is overconfident there; calibrate on other rows"
        ]
    before, after = fitted.before.summary(), fitted.after.summary()
    lines = [
        *metric_lines({"not calibrated": before, "calibrated": after}),
        CROSS_FITTED,
        f"model {found.id} is in {out}: model {loaded.id}, calibrated on {after.examples:,} rows",
        *bad_rows_lines(source.bad_rows, policy.quarantine),
        *(f"warning: {text}" for text in warnings),
    ]
    facts = {
        "model": found.id,
        "saved_to": printable(out),
        "calibrated": found.manifest["calibrated"],
        "holdout": after.to_json(),
        "holdout_uncalibrated": before.to_json(),
        "bad_rows": source.bad_rows.count,
        "warnings": warnings,
        "seconds": perf_counter() - started,
        "peak_memory_mb": peak_memory_mb(),
    }
    report(lines, facts)
