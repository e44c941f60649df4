"""`ctr drill`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from ctr.cli.options import MOST_SECONDS, Consistency, JsonOption, finite, taking
from ctr.cli.reporting import report, stopping
from ctr.drill import FAULTS, DrillSettings

_DEFAULT = DrillSettings()
_CONSISTENCY = Consistency(_DEFAULT.consistency)
_ALL_FAULTS = ",".join(_DEFAULT.faults)


@dataclass(frozen=True, slots=True)
class DrillOptions:
    """What the command line says."""

    rows: Annotated[int, typer.Option(min=10_000, help="Synthetic rows to train on.")] = _DEFAULT.rows
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the data, and of the order, times and victims of the faults.")
    ] = _DEFAULT.seed
    nodes: Annotated[
        int, typer.Option("--nodes", "--shards", min=3, max=20, help="Redis primaries at the beginning.")
    ] = _DEFAULT.nodes
    replicas: Annotated[int, typer.Option(min=1, max=2, help="Replicas of each primary.")] = _DEFAULT.replicas
    workers: Annotated[int, typer.Option(min=2, help="Worker processes.")] = _DEFAULT.workers
    consistency: Annotated[
        Consistency, typer.Option(help="As in `ctr train`; with bsp the weights must be equal to the bit.")
    ] = _CONSISTENCY
    faults: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="; ".join(f"{kind}: {what}" for kind, what in FAULTS.items()) + ". Or none."
        ),
    ] = _ALL_FAULTS
    rounds: Annotated[
        int, typer.Option(min=1, help="Jobs to disturb with all faults, each in another order.")
    ] = _DEFAULT.rounds
    freezes: Annotated[
        int, typer.Option(min=0, help="Freezes of independent servers afterwards, up to 20 at a time.")
    ] = _DEFAULT.freezes
    freeze_s: Annotated[
        float, typer.Option(min=0.1, max=MOST_SECONDS, callback=finite, help="Seconds that a freeze lasts.")
    ] = _DEFAULT.freeze_s
    allowance_s: Annotated[
        float,
        typer.Option(
            min=0,
            max=MOST_SECONDS,
            callback=finite,
            help="Seconds, besides the node timeout of 1.5 s, within which training must continue after a "
            "primary was killed.",
        ),
    ] = _DEFAULT.allowance_s
    tolerance: Annotated[
        float,
        typer.Option(
            min=0, callback=finite, help="By how much of it the log loss may be worse than undisturbed."
        ),
    ] = _DEFAULT.tolerance
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep data and ledgers in this new folder.")
    ] = None
    json: JsonOption = None


@taking(DrillOptions)
def drill(told: DrillOptions) -> None:
    """Show that training loses nothing: break its servers and workers, and check the sums.

    Starts a Redis Cluster of its own, trains twice on synthetic rows, and during the second job kills a
    primary, one whose replica is behind, and a worker, freezes servers, fills the memory of one, and moves
    partitions. Every worker keeps a ledger of what it pushed; afterwards the store must hold each push of the
    ledgers exactly once. Exit code 1 when it does not, or when the job did not recover.

    Example: `ctr drill --seed 7 --keep drill`
    """
    if told.keep is not None and told.keep.exists():
        raise typer.BadParameter(f"--keep {told.keep} is there already; name a folder that is not.")
    settings = DrillSettings(
        rows=told.rows,
        seed=told.seed,
        nodes=told.nodes,
        replicas=told.replicas,
        workers=told.workers,
        consistency=told.consistency.value,
        faults=_kinds(told.faults),
        rounds=told.rounds,
        freezes=told.freezes,
        freeze_s=told.freeze_s,
        allowance_s=told.allowance_s,
        tolerance=told.tolerance,
    )
    _run(settings, told.keep, told.json)


def _kinds(faults: str) -> tuple[str, ...]:
    kinds = () if faults == "none" else tuple(dict.fromkeys(kind.strip() for kind in faults.split(",")))
    if unknown := [kind for kind in kinds if kind not in FAULTS]:
        raise typer.BadParameter(f"--faults has {unknown[0]!r}: name some of {', '.join(FAULTS)}, or none.")
    return kinds


def _run(settings: DrillSettings, keep: Path | None, json: Path | None) -> None:
    """Run the drill and report what it found."""
    import tempfile
    from contextlib import ExitStack

    from ctr.drill import run_drill
    from ctr.interrupts import stop_requests

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
