"""`ctr drill`."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from ctr.cli.options import MOST_SECONDS, Consistency, JsonOption, finite
from ctr.cli.reporting import report, stopping
from ctr.drill import FAULTS


def drill(
    rows: Annotated[int, typer.Option(min=10_000, help="Synthetic rows to train on.")] = 250_000,
    seed: Annotated[
        int,
        typer.Option(min=0, help="Of the data, and of the order, moments and victims of the faults."),
    ] = 0,
    shards: Annotated[int, typer.Option(min=3, max=20, help="Redis primaries to begin with.")] = 3,
    replicas: Annotated[int, typer.Option(min=1, max=2, help="Replicas of each.")] = 1,
    workers: Annotated[int, typer.Option(min=2, help="Worker processes.")] = 3,
    consistency: Annotated[
        Consistency, typer.Option(help="As in `ctr train`; with bsp the weights must be equal to the bit.")
    ] = Consistency.SSP,
    faults: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="; ".join(f"{kind}: {what}" for kind, what in FAULTS.items()) + ". Or none.",
        ),
    ] = ",".join(FAULTS),
    rounds: Annotated[int, typer.Option(min=1, help="Jobs that meet all faults, each in another order.")] = 1,
    freezes: Annotated[
        int,
        typer.Option(min=0, help="Afterwards, freezes of independent servers, up to 20 at a time."),
    ] = 20,
    freeze_s: Annotated[
        float, typer.Option(min=0.1, max=MOST_SECONDS, callback=finite, help="Seconds that a freeze lasts.")
    ] = 7.0,
    allowance_s: Annotated[
        float,
        typer.Option(
            min=0,
            max=MOST_SECONDS,
            callback=finite,
            help="After a primary was killed, training must go on within the node timeout of 1.5 s and so "
            "many seconds.",
        ),
    ] = 3.0,
    tolerance: Annotated[
        float,
        typer.Option(
            min=0, callback=finite, help="Share by which the log loss may be worse than undisturbed."
        ),
    ] = 0.003,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep data and ledgers in this new folder.", show_default=False),
    ] = None,
    json: JsonOption = None,
) -> None:
    """Show that training loses nothing: break its servers and workers, and compare what is left.

    Starts a Redis Cluster of its own, trains twice on synthetic rows, and during the second job kills a
    primary, one whose replica is behind, and a worker, freezes servers, fills the memory of one, and moves
    partitions. Every worker keeps a ledger of what it pushed; afterwards the store must hold each push of the
    ledgers, once. Exit code 1 when it does not, or when the job did not recover.

    Example: `ctr drill --seed 7 --keep drill`
    """
    import tempfile
    from contextlib import ExitStack

    from ctr.drill import DrillSettings, run_drill
    from ctr.interrupts import stop_requests

    kinds = () if faults == "none" else tuple(dict.fromkeys(kind.strip() for kind in faults.split(",")))
    if unknown := [kind for kind in kinds if kind not in FAULTS]:
        raise typer.BadParameter(f"--faults has {unknown[0]!r}: name some of {', '.join(FAULTS)}, or none.")
    if keep is not None and keep.exists():
        raise typer.BadParameter(f"--keep {keep} is there already; name a folder that is not.")
    settings = DrillSettings(
        rows=rows,
        seed=seed,
        shards=shards,
        replicas=replicas,
        workers=workers,
        consistency=consistency.value,
        faults=kinds,
        rounds=rounds,
        freezes=freezes,
        freeze_s=freeze_s,
        allowance_s=allowance_s,
        tolerance=tolerance,
    )
    with ExitStack() as opened:
        opened.enter_context(stopping("The servers and workers of the drill have ended."))
        stop = opened.enter_context(stop_requests())
        if keep is None:
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="ctr-drill-")))
        else:
            folder = keep
            folder.mkdir(parents=True)
        started = monotonic()
        found = run_drill(
            settings,
            folder,
            stop,
            lambda line: typer.echo(f"{monotonic() - started:6.1f} s  {line}", err=True),
        )
    lines = found.lines()
    if found.problems:
        lines.append(
            f"{folder} has the ledgers" if keep else "with --keep DIR and this seed, look at the ledgers"
        )
    report(lines, found.to_json(), json)
    if found.problems:
        raise typer.Exit(1)
