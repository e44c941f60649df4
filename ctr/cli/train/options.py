"""The options of `ctr train`, in the order in which its help shows them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ctr.cli.options import MOST_SECONDS, Consistency, finite

_in_redis = partial(typer.Option, rich_help_panel="Parameters in Redis")

OutOption = Annotated[
    Path,
    typer.Option(
        "--model",
        metavar="DIR",
        help="Folder for the trained model; a model that is there is replaced.",
        show_default=False,
    ),
]

WorkersOption = Annotated[
    int,
    typer.Option(
        "--workers", min=1, help="Workers that train at the same time: threads in memory, else processes."
    ),
]

ChunkOption = Annotated[
    int | None,
    typer.Option(
        "--chunk",
        min=1,
        help="Examples that a worker trains on between reading the shared weights and adding its change "
        "to them. Default in memory: 65,536; for several workers a 25th of their rows where that would "
        "leave fewer than 6 rounds. Through Redis: an 8th of a worker's rows, at most 524,288; for several "
        "at most 131,072, or a 16th if that is more.",
        show_default=False,
    ),
]

EpochsOption = Annotated[int, typer.Option("--epochs", min=1, help="Passes over the data.")]

OptimizerOption = Annotated[
    str | None,
    typer.Option(
        "--optimizer",
        metavar="NAME",
        help="Optimizer; its settings are the options below. Default: ftrl (FTRL-Proximal).",
        show_default=False,
    ),
]

AlphaOption = Annotated[
    float | None,
    typer.Option("--alpha", min=0, callback=finite, help="Learning rate. Default: 0.1.", show_default=False),
]

BetaOption = Annotated[
    float | None,
    typer.Option(
        "--beta", min=0, callback=finite, help="Damps the first steps. Default: 1.", show_default=False
    ),
]

L1Option = Annotated[
    float | None,
    typer.Option(
        "--l1",
        min=0,
        callback=finite,
        help="L1 penalty: above 0, rare features get weight 0. Counts once per pass. Default: 0.",
        show_default=False,
    ),
]

L2Option = Annotated[
    float | None,
    typer.Option(
        "--l2",
        min=0,
        callback=finite,
        help="L2 penalty: pulls weights towards 0. Default: 0.",
        show_default=False,
    ),
]

SafeAddingOption = Annotated[
    float,
    typer.Option(
        "--safe-adding",
        min=0,
        max=1,
        callback=finite,
        help="How far several workers allow for each other's updates; 0 simply adds them.",
    ),
]


def _probability(value: float) -> float:
    if not 0 < value <= 1:  # nor if it is no number
        raise typer.BadParameter(
            f"{value:g} is not a probability above 0: give one of at most 1, such as 0.2."
        )
    return value


AdmitOption = Annotated[
    float,
    typer.Option(
        "--admit",
        metavar="P",
        callback=_probability,
        help="Store a feature that is new, and that occurs once in its chunk, with this probability only: a "
        "smaller model and less to send, but what rare features say is in part forgotten.",
    ),
]

HoldoutOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--holdout",
        exists=True,
        metavar="FILE",
        help="Evaluate the model on this input; may be repeated.",
        show_default=False,
    ),
]

HoldoutFractionOption = Annotated[
    float | None,
    typer.Option(
        "--holdout-fraction",
        min=0,
        max=0.99,
        callback=finite,
        help="Keep the last part of the input out of training and evaluate the model on it.",
        show_default=False,
    ),
]

WarmStartOption = Annotated[
    Path | None,
    typer.Option(
        "--warm-start",
        metavar="DIR",
        help="Train on from the state of this model, with its settings where no others are given.",
        show_default=False,
    ),
]

BaseRateOption = Annotated[
    float | None,
    typer.Option(
        "--base-rate",
        min=0,
        max=1,
        metavar="RATE",
        help="Click rate at which the bias starts. Default: that of the first 16,384 rows.",
        show_default=False,
    ),
]

StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        help="Where the parameters live while training: memory://, embedded://?shards=2 (redis-server "
        "processes started here), redis://host:port/0 or redis+cluster://host:port,host:port.",
    ),
]

ConsistencyOption = Annotated[
    Consistency | None,
    _in_redis(
        "--consistency",
        help="bsp: rounds, the same result to the bit every time; ssp: no worker is more than --staleness "
        "chunks ahead of the slowest; asp: no worker waits. Default: bsp in memory, else ssp.",
        show_default=False,
    ),
]

StalenessOption = Annotated[
    int,
    _in_redis(
        "--staleness",
        min=0,
        help="With ssp: chunks that a worker may be ahead of the slowest.",
    ),
]

CacheOption = Annotated[
    bool | None,
    _in_redis(
        "--cache/--no-cache",
        help="Do not pull again what was pulled within the staleness bound. Default: on; off with bsp.",
        show_default=False,
    ),
]

PresenceOption = Annotated[
    bool | None,
    _in_redis(
        "--presence/--no-presence",
        help="Do not pull what no worker has pushed yet. Default: on; off with bsp.",
        show_default=False,
    ),
]

DeferOption = Annotated[
    float | None,
    _in_redis(
        "--defer",
        "--hold-back",
        min=0,
        callback=finite,
        metavar="NATS",
        help="Log a slot's change, for the others to see it later, while they would gain less than this by "
        "it, per chunk; 0: never. Default: 0.01; 0 with bsp.",
        show_default=False,
    ),
]

KktOption = Annotated[
    bool | None,
    _in_redis(
        "--kkt/--no-kkt",
        help="Log changes that leave a weight at zero; with --l1. Default: off.",
        show_default=False,
    ),
]

CheckpointOption = Annotated[
    Path | None,
    _in_redis(
        "--checkpoint",
        metavar="DIR",
        help="Write checkpoints here.",
        show_default=False,
    ),
]

CheckpointEveryOption = Annotated[
    str,
    _in_redis(
        "--checkpoint-every",
        metavar="TIME",
        help="Time between checkpoints, such as 30s or 5m.",
    ),
]

ResumeOption = Annotated[
    bool,
    _in_redis("--resume", help="Go on from the checkpoint in --checkpoint."),
]

LeaseOption = Annotated[
    float | None,
    _in_redis(
        "--lease",
        min=0.5,
        max=MOST_SECONDS,
        callback=finite,
        help="Seconds without a heartbeat after which a worker counts as dead. Default: 10.",
        show_default=False,
    ),
]

StallTimeoutOption = Annotated[
    float,
    _in_redis(
        "--stall-timeout",
        min=1,
        metavar="SECONDS",
        help="A worker that is alive but makes no progress for so long, such as one whose disk hangs, counts "
        "as dead.",
    ),
]
