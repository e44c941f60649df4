"""The options of `ctr train`, in the order in which its help shows them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ctr.cli.options import (
    MOST_SECONDS,
    BadRowsOption,
    Calibrate,
    Consistency,
    Inputs,
    JsonOption,
    MaxBadFraction,
    OnBadRows,
    SpecOption,
    check_inputs,
    finite,
    store_url,
)
from ctr.cli.train.settings import SettingsOption, with_scales_of_file
from ctr.defaults import CHECKPOINT_EVERY_S, MOST_BAD, MOST_POS_WEIGHT, SAFE_ADDING, STALENESS, STALL_S, STORE

_learning = partial(typer.Option, rich_help_panel="Learning")
_optimizer = partial(typer.Option, rich_help_panel="Optimizer")
_holdout = partial(typer.Option, rich_help_panel="Hold-out")
_going_on = partial(typer.Option, rich_help_panel="From a model, and day after day")
_in_redis = partial(typer.Option, rich_help_panel="Parameters in Redis")


def _probability(value: float) -> float:
    if not 0 < value <= 1:  # nor if it is no number
        raise typer.BadParameter(
            f"{value:g} is not a probability above 0: give one of at most 1, such as 0.2."
        )
    return value


def _weight(value: float) -> float:
    if not 1 / MOST_POS_WEIGHT <= value <= MOST_POS_WEIGHT:
        raise typer.BadParameter(
            f"{value:g} is no weight of clicks: give a number from {1 / MOST_POS_WEIGHT:g} to "
            f"{MOST_POS_WEIGHT:,.0f}, such as 5."
        )
    return value


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """What the command line says; None where it leaves the choice to the job."""

    inputs: Inputs
    model: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder for the trained model; a model that is there is replaced."),
    ]
    spec: SpecOption = None
    settings: SettingsOption = None
    scale: Annotated[
        list[str] | None,
        _learning(
            metavar="NAME=NUMBER",
            callback=with_scales_of_file,
            help="Multiply the values of the features of a field or cross, which then learn as if --alpha "
            "were so many times as large. Can be repeated; `ctr tune` and --auto find them.",
            show_default=False,
        ),
    ] = None
    auto: Annotated[
        bool,
        typer.Option(
            "--auto",
            help="First find --epochs, --alpha, --beta, --l1 and --l2 (with raw files, --scale too) in 30 "
            "trials on at most the first 500,000 rows, as `ctr tune` does; settings that you give are kept. "
            "Large inputs get fewer trials. The search stops after about 120 s; the manifest then says so.",
        ),
    ] = False
    workers: Annotated[
        int,
        _learning(min=1, help="Workers that train at the same time: threads in memory, else processes."),
    ] = 1
    chunk: Annotated[
        int | None,
        _learning(
            min=1,
            help="Examples that a worker trains on between reading the shared weights and adding its change "
            "to them. Default in memory: 65,536; for several workers a 25th of their rows where that would "
            "leave fewer than 6 rounds. Through Redis: an 8th of the rows, at most 524,288; for several "
            "workers a 12th of their rows, at most 524,288; in any case a 32nd, "
            "at most 1,048,576, where that is more.",
        ),
    ] = None
    epochs: Annotated[int, _learning(min=1, help="Passes over the data.")] = 1
    early_stopping: Annotated[
        bool,
        _holdout(
            "--early-stopping",
            help="End when a pass makes the log loss of the hold-out worse, and keep the best pass.",
        ),
    ] = False
    optimizer: Annotated[
        str | None,
        _optimizer(
            metavar="NAME",
            help="Optimizer: ftrl (FTRL-Proximal), adagrad, or lbfgs, which minimises the loss of all rows "
            "in memory (with --l1 by OWL-QN); its settings are the options below. Default: ftrl.",
        ),
    ] = None
    alpha: Annotated[
        float | None, _optimizer(min=0, callback=finite, help="Learning rate. Default: 0.1; adagrad: 0.07.")
    ] = None
    beta: Annotated[
        float | None,
        _optimizer(min=0, callback=finite, help="Damps the first steps. Default: 1; adagrad: 0.5."),
    ] = None
    l1: Annotated[
        float | None,
        _optimizer(
            min=0,
            callback=finite,
            help="L1 penalty: above 0, rare features get weight 0. Counts once per pass, with adagrad once "
            "per occurrence, with lbfgs beside the sum of all log losses. Default: 0.",
        ),
    ] = None
    l2: Annotated[
        float | None,
        _optimizer(
            min=0,
            callback=finite,
            help="L2 penalty: pulls weights towards 0. Counts as --l1 does. Default: 0; lbfgs: 10.",
        ),
    ] = None
    iterations: Annotated[
        int | None,
        _optimizer(min=1, help="With lbfgs: at most so many, of two passes each. Default: 200."),
    ] = None
    tolerance: Annotated[
        float | None,
        _optimizer(
            min=0,
            callback=finite,
            help="With lbfgs: end when the gradient promises to lower the objective by less than this share. "
            "Default: 1e-6.",
        ),
    ] = None
    safe_adding: Annotated[
        float,
        _learning(
            min=0,
            max=1,
            callback=finite,
            help="How far several workers allow for each other's updates; 0 simply adds them.",
        ),
    ] = SAFE_ADDING
    admit: Annotated[
        float,
        _learning(
            metavar="P",
            callback=_probability,
            help="Store a feature that is new, and that occurs once in its chunk, with this probability "
            "only: a smaller model and less to send, but what rare features say is in part forgotten.",
        ),
    ] = 1.0
    negative_rate: Annotated[
        float,
        _learning(
            metavar="R",
            callback=_probability,
            help="Learn from each row without a click with this probability only, and from all clicks; those "
            "that are kept weigh 1/R, so predictions stay right. For clicks that are rare.",
        ),
    ] = 1.0
    pos_weight: Annotated[
        float,
        _learning(
            metavar="W",
            callback=_weight,
            help="A click counts as W clicks in training: odds are predicted about W times too high, unless "
            "--calibrate corrects that.",
        ),
    ] = 1.0
    holdout: Annotated[
        list[str] | None,
        _holdout(
            callback=check_inputs, metavar="FILE", help="Evaluate the model on this input; may be repeated."
        ),
    ] = None
    holdout_fraction: Annotated[
        float | None,
        _holdout(
            min=0,
            max=0.99,
            callback=finite,
            help="Keep the last part of the input out of training and evaluate the model on it.",
        ),
    ] = None
    holdout_where: Annotated[
        str | None,
        _holdout(
            metavar="CONDITION",
            help="Keep the rows that meet this out of training and evaluate the model on them, such as "
            "'click_time >= 2017-11-09 and site != a': = != < <= > >= of columns, joined by and, or.",
        ),
    ] = None
    calibrate: Annotated[
        Calibrate | None,
        _holdout(
            help="Fit the model's probabilities to the hold-out: isotonic (any rising curve; needs some "
            "thousand clicks) or platt (a line in log-odds)."
        ),
    ] = None
    warm_start: Annotated[
        Path | None,
        _going_on(
            metavar="DIR",
            help="Train on from the state of this model, with its spec and settings where none are given.",
        ),
    ] = None
    forget: Annotated[
        float,
        _going_on(
            min=0,
            max=1,
            callback=finite,
            metavar="SHARE",
            help="With --warm-start: the share of the model's evidence to forget. Its weights stay, and new "
            "rows move them faster: 0.5 as if half as much had been learnt before.",
        ),
    ] = 0.0
    progressive_days: Annotated[
        bool,
        _going_on(
            "--progressive-days",
            help="Each INPUT is a day: train on one after the other, each time evaluating on the next.",
        ),
    ] = False
    report: Annotated[
        Path | None,
        _going_on(metavar="FILE", help="With --progressive-days: plot the days here (.png, .svg or .pdf)."),
    ] = None
    track: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR|mlflow",
            help="Keep what was trained, with which settings, on what and how well: as a JSON file in this "
            "folder, which `ctr runs` lists, or in MLflow (at MLFLOW_TRACKING_URI). May be repeated.",
        ),
    ] = None
    base_rate: Annotated[
        float | None,
        _learning(
            min=0,
            max=1,
            metavar="RATE",
            help="Click rate at which the bias starts. Default: that of the first 16,384 rows.",
        ),
    ] = None
    store: Annotated[
        str,
        typer.Option(
            metavar="URL",
            callback=store_url,
            help="Where the parameters live while training: memory://, embedded://?shards=2 (redis-server "
            "processes started here), redis://host:port/0 or redis+cluster://host:port,host:port.",
        ),
    ] = STORE
    consistency: Annotated[
        Consistency | None,
        _in_redis(
            help="bsp: rounds, the same result to the bit every time; ssp: no worker is more than "
            "--staleness chunks ahead of the slowest; asp: no worker waits. Default: bsp in memory, else ssp."
        ),
    ] = None
    staleness: Annotated[
        int, _in_redis(min=0, help="With ssp: chunks that a worker may be ahead of the slowest.")
    ] = STALENESS
    cache: Annotated[
        bool | None,
        _in_redis(
            help="Do not pull again what was pulled within the staleness bound. Default: on; off with bsp."
        ),
    ] = None
    presence: Annotated[
        bool | None, _in_redis(help="Do not pull what no worker has pushed yet. Default: on; off with bsp.")
    ] = None
    defer: Annotated[
        float | None,
        _in_redis(
            "--defer",
            "--hold-back",
            min=0,
            callback=finite,
            metavar="NATS",
            help="Log a slot's change, for the others to see it later, while they would gain less than this "
            "by it, per chunk; 0: never. Default: 0.01; 0 with bsp, and where fewer than 2% of rows are "
            "clicks.",
        ),
    ] = None
    kkt: Annotated[
        bool | None, _in_redis(help="Log changes that leave a weight at zero; with --l1. Default: off.")
    ] = None
    checkpoint: Annotated[Path | None, _in_redis(metavar="DIR", help="Write checkpoints here.")] = None
    checkpoint_every: Annotated[
        str, _in_redis(metavar="TIME", help="Time between checkpoints, such as 30s or 5m.")
    ] = f"{CHECKPOINT_EVERY_S:g}s"
    resume: Annotated[bool, _in_redis("--resume", help="Go on from the checkpoint in --checkpoint.")] = False
    lease: Annotated[
        float | None,
        _in_redis(
            min=0.5,
            max=MOST_SECONDS,
            callback=finite,
            help="Seconds without a heartbeat after which a worker counts as dead. Default: 10.",
        ),
    ] = None
    stall_timeout: Annotated[
        float,
        _in_redis(
            min=1,
            metavar="SECONDS",
            help="A worker that is alive but makes no progress for so long, such as one whose disk hangs, "
            "counts as dead.",
        ),
    ] = STALL_S
    on_bad_rows: BadRowsOption = OnBadRows.FAIL
    max_bad_fraction: MaxBadFraction = MOST_BAD
    json: JsonOption = None
