"""`ctr drill`."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from ctr.cli.options import MOST_SECONDS, Consistency, JsonOption, finite
from ctr.cli.reporting import report, stopping
from ctr.drill import FAULTS, DrillSettings

_DEFAULT = DrillSettings()
_CONSISTENCY = Consistency(_DEFAULT.consistency)
_ALL_FAULTS = ",".join(_DEFAULT.faults)

RowsOption = Annotated[int, typer.Option("--rows", min=10_000, help="Synthetic rows to train on.")]
SeedOption = Annotated[
    int,
    typer.Option(
        "--seed", min=0, help="Seed of the data, and of the order, times and victims of the faults."
    ),
]
NodesOption = Annotated[
    int, typer.Option("--nodes", "--shards", min=3, max=20, help="Redis primaries at the beginning.")
]
ReplicasOption = Annotated[int, typer.Option("--replicas", min=1, max=2, help="Replicas of each primary.")]
WorkersOption = Annotated[int, typer.Option("--workers", min=2, help="Worker processes.")]
ConsistencyOption = Annotated[
    Consistency,
    typer.Option("--consistency", help="As in `ctr train`; with bsp the weights must be equal to the bit."),
]
FaultsOption = Annotated[
    str,
    typer.Option(
        "--faults",
        metavar="LIST",
        help="; ".join(f"{kind}: {what}" for kind, what in FAULTS.items()) + ". Or none.",
    ),
]
RoundsOption = Annotated[
    int, typer.Option("--rounds", min=1, help="Jobs to disturb with all faults, each in another order.")
]
FreezesOption = Annotated[
    int,
    typer.Option("--freezes", min=0, help="Freezes of independent servers afterwards, up to 20 at a time."),
]
FreezeSecondsOption = Annotated[
    float,
    typer.Option(
        "--freeze-s", min=0.1, max=MOST_SECONDS, callback=finite, help="Seconds that a freeze lasts."
    ),
]
AllowanceOption = Annotated[
    float,
    typer.Option(
        "--allowance-s",
        min=0,
        max=MOST_SECONDS,
        callback=finite,
        help="Seconds, besides the node timeout of 1.5 s, within which training must continue after a "
        "primary was killed.",
    ),
]
ToleranceOption = Annotated[
    float,
    typer.Option(
        "--tolerance",
        min=0,
        callback=finite,
        help="By how much of it the log loss may be worse than undisturbed.",
    ),
]
KeepOption = Annotated[
    Path | None,
    typer.Option(
        "--keep", metavar="DIR", help="Keep data and ledgers in this new folder.", show_default=False
    ),
]


def drill(
    rows: RowsOption = _DEFAULT.rows,
    seed: SeedOption = _DEFAULT.seed,
    nodes: NodesOption = _DEFAULT.nodes,
    replicas: ReplicasOption = _DEFAULT.replicas,
    workers: WorkersOption = _DEFAULT.workers,
    consistency: ConsistencyOption = _CONSISTENCY,
    faults: FaultsOption = _ALL_FAULTS,
    rounds: RoundsOption = _DEFAULT.rounds,
    freezes: FreezesOption = _DEFAULT.freezes,
    freeze_s: FreezeSecondsOption = _DEFAULT.freeze_s,
    allowance_s: AllowanceOption = _DEFAULT.allowance_s,
    tolerance: ToleranceOption = _DEFAULT.tolerance,
    keep: KeepOption = None,
    json: JsonOption = None,
) -> None:
    """Show that training loses nothing: break its servers and workers, and check the sums.

    Starts a Redis Cluster of its own, trains twice on synthetic rows, and during the second job kills a
    primary, one whose replica is behind, and a worker, freezes servers, fills the memory of one, and moves
    partitions. Every worker keeps a ledger of what it pushed; afterwards the store must hold each push of the
    ledgers exactly once. Exit code 1 when it does not, or when the job did not recover.

    Example: `ctr drill --seed 7 --keep drill`
    """
    if keep is not None and keep.exists():
        raise typer.BadParameter(f"--keep {keep} is there already; name a folder that is not.")
    settings = DrillSettings(
        rows=rows,
        seed=seed,
        nodes=nodes,
        replicas=replicas,
        workers=workers,
        consistency=consistency.value,
        faults=_kinds(faults),
        rounds=rounds,
        freezes=freezes,
        freeze_s=freeze_s,
        allowance_s=allowance_s,
        tolerance=tolerance,
    )
    _run(settings, keep, json)


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
