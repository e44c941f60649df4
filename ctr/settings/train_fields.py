"""`TrainFields`: the settings of training, in the order of help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from ctr.defaults import (
    CHECKPOINT_EVERY_S,
    MOST_BAD,
    MOST_WORKERS,
    SAFE_ADDING,
    STALENESS,
    STALL_S,
    STORE,
)
from ctr.settings.setting import Setting, Settings
from ctr.settings.shared import (
    BadRows,
    Consistency,
    Duration,
    EngineName,
    HoldoutWhere,
    Inputs,
    Lease,
    Master,
    MaxBadFraction,
    Method,
    Place,
    Spec,
    Store,
    StreamUrl,
    click_weight,
    probability,
    scales,
)

_learning = partial(Setting, group="Learning")
_optimizer = partial(Setting, group="Optimizer")
_holdout = partial(Setting, group="Hold-out")
_later = partial(Setting, group="From a model, and day after day")
_in_redis = partial(Setting, group="Parameters in Redis")
_engine = partial(Setting, group="Engine")
_stream = partial(Setting, group="Training that never stops")


def _text_of_path(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


_Positive = Field(ge=1)
_NotNegative = Field(ge=0)
_Share = Field(ge=0, le=1)


class TrainFields(Settings):
    """What to train, on what, and where the model goes."""

    inputs: Inputs = ()
    """A hashed data set, or raw files: see `ctr.features.open_source`."""
    model: Annotated[
        Path, Setting("Folder for the trained model; a model that is there is replaced.", metavar="DIR")
    ]
    publish: Annotated[
        str | None,
        BeforeValidator(_text_of_path),
        Setting(
            "Also add the finished model to this registry, a folder or a URI, and have labels point to it, "
            "such as models@stable: see `ctr models`.",
            metavar="DIR[@LABEL]",
        ),
    ] = None
    examples: Annotated[
        int,
        Field(ge=0, le=1_000),
        Setting(
            "So many of the first rows are kept with the model, in `examples.json`: a server predicts them "
            "before it serves the model. 0: none."
        ),
    ] = 10
    spec: Spec = None
    settings: Annotated[
        Path | None,
        Setting(
            "Options from this file, as `ctr tune` writes it; those on the command line take precedence.",
            metavar="FILE",
        ),
    ] = None
    """The file whose settings are among these."""
    scale: Annotated[
        Mapping[str, Annotated[float, Field(allow_inf_nan=True)]],  # the spec refuses that, by its field
        BeforeValidator(scales),
        _learning(
            "Multiply the values of the features of a field or cross, which then learn as if {alpha} were so "
            "many times as large. Can be repeated; `ctr tune` and {auto} find them.",
            metavar="NAME=NUMBER",
            kind=list[str],
        ),
    ] = Field(default_factory=dict)
    """By field or cross, those that take the place of the spec's."""
    auto: Annotated[
        bool,
        Setting(
            "First find {epochs}, {alpha}, {beta}, {l1}, {l2} and {scale} in 30 trials "
            "on at most the first 500,000 rows, as `ctr tune` does; settings that you give are kept. Large "
            "inputs get fewer trials. The search stops after about 120 s; the manifest then says so."
        ),
    ] = False
    workers: Annotated[
        int,
        Field(ge=1, le=MOST_WORKERS),
        _learning("Workers that train at the same time: threads in memory, else processes."),
    ] = 1
    chunk: Annotated[
        int | None,
        _Positive,
        _learning(
            "Examples that a worker trains on between reading the shared weights and adding its change to "
            "them. Default in memory: 65,536; for several workers a 25th of their rows where that would "
            "leave fewer than 6 rounds. Through Redis: an 8th of the rows, at most 524,288; for several "
            "workers a 12th of their rows, at most 524,288; in any case a 32nd, at most 1,048,576, where "
            "that is more."
        ),
    ] = None
    epochs: Annotated[int, _Positive, _learning("Passes over the data.")] = 1
    early_stopping: Annotated[
        bool, _holdout("End when a pass makes the log loss of the hold-out worse, and keep the best pass.")
    ] = False
    optimizer: Annotated[
        str | None,
        _optimizer(
            "Optimizer: ftrl (FTRL-Proximal), adagrad, or lbfgs, which minimises the loss of all rows in "
            "memory (with {l1} by OWL-QN); its settings are the options below. Default: ftrl.",
            metavar="NAME",
        ),
    ] = None
    """None, as for its settings: as in the warm start, or else the default."""
    alpha: Annotated[
        float | None, _NotNegative, _optimizer("Learning rate. Default: 0.1; adagrad: 0.07.")
    ] = None
    beta: Annotated[
        float | None, _NotNegative, _optimizer("Damps the first steps. Default: 1; adagrad: 0.5.")
    ] = None
    l1: Annotated[
        float | None,
        _NotNegative,
        _optimizer(
            "L1 penalty: above 0, rare features get weight 0. Counts once per pass, with adagrad once per "
            "occurrence, with lbfgs beside the sum of all log losses. Default: 0."
        ),
    ] = None
    l2: Annotated[
        float | None,
        _NotNegative,
        _optimizer("L2 penalty: pulls weights towards 0. Counts as {l1} does. Default: 0; lbfgs: 10."),
    ] = None
    iterations: Annotated[
        int | None, _Positive, _optimizer("With lbfgs: at most so many, of two passes each. Default: 200.")
    ] = None
    tolerance: Annotated[
        float | None,
        _NotNegative,
        _optimizer(
            "With lbfgs: end when the gradient promises to lower the objective by less than this share. "
            "Default: 1e-6."
        ),
    ] = None
    safe_adding: Annotated[
        float,
        _Share,
        _learning("How far several workers allow for each other's updates; 0 simply adds them."),
    ] = SAFE_ADDING
    admit: Annotated[
        float,
        AfterValidator(probability),
        _learning(
            "Store a feature that is new, and that occurs once in its chunk, with this probability only: a "
            "smaller model and less to send, but what rare features say is in part forgotten.",
            metavar="P",
        ),
    ] = 1.0
    negative_rate: Annotated[
        float,
        AfterValidator(probability),
        _learning(
            "Learn from each row without a click with this probability only, and from all clicks; those that "
            "are kept weigh 1/R, so predictions stay right. For clicks that are rare.",
            metavar="R",
        ),
    ] = 1.0
    pos_weight: Annotated[
        float,
        AfterValidator(click_weight),
        _learning(
            "A click counts as W clicks in training: odds are predicted about W times too high, unless "
            "{calibrate} corrects that.",
            metavar="W",
        ),
    ] = 1.0
    holdout: Annotated[
        Sequence[str | Path],
        _holdout(
            "Evaluate the model on this input; may be repeated.",
            metavar="FILE",
            kind=list[str],
            paths=True,
        ),
    ] = ()
    holdout_fraction: Annotated[
        float | None,
        Field(ge=0, le=0.99),
        _holdout("Keep the last part of the input out of training and evaluate the model on it."),
    ] = None
    holdout_where: Annotated[
        HoldoutWhere,
        _holdout(
            "Keep the rows that meet this out of training and evaluate the model on them, such as "
            "'click_time >= 2017-11-09 and site != a': = != < <= > >= of columns, joined by and, or.",
            metavar="CONDITION",
        ),
    ] = None
    calibrate: Annotated[
        Method | None,
        _holdout(
            "Fit the model's probabilities to the hold-out: isotonic (any rising curve; needs some thousand "
            "clicks) or platt (a line in log-odds)."
        ),
    ] = None
    warm_start: Annotated[
        Path | None,
        _later(
            "Train on from the state of this model, with its spec and settings where none are given.",
            metavar="DIR",
        ),
    ] = None
    forget: Annotated[
        float,
        _Share,
        _later(
            "With {warm_start}: the share of the model's evidence to forget. Its weights stay, and new rows "
            "move them faster: 0.5 as if half as much had been learnt before.",
            metavar="SHARE",
        ),
    ] = 0.0
    """See `Optimizer.forget`."""
    track: Annotated[
        Sequence[str],
        Setting(
            "Keep what was trained, with which settings, on what and how well: as a JSON file in this "
            "folder, which `ctr runs` lists, or in MLflow (at MLFLOW_TRACKING_URI). May be repeated.",
            metavar="DIR|mlflow",
            kind=list[str],
        ),
    ] = ()
    base_rate: Annotated[
        float | None,
        _Share,
        _learning(
            "Click rate at which the bias starts. Default: that of the first 16,384 rows.", metavar="RATE"
        ),
    ] = None
    store: Annotated[
        Store,
        Setting(
            "Where the parameters live while training: memory://, embedded://?shards=2 (redis-server "
            "processes started here), redis://host:port/0 or redis+cluster://host:port,host:port.",
            metavar="URL",
        ),
    ] = STORE
    consistency: Annotated[
        Consistency | None,
        _in_redis(
            "bsp: rounds, the same result to the bit every time; ssp: no worker is more than {staleness} "
            "chunks ahead of the slowest; asp: no worker waits. Default: bsp in memory, else ssp."
        ),
    ] = None
    staleness: Annotated[
        int, _NotNegative, _in_redis("With ssp: chunks that a worker may be ahead of the slowest.")
    ] = STALENESS
    cache: Annotated[
        bool | None,
        _in_redis("Do not pull again what was pulled within the staleness bound. Default: on; off with bsp."),
    ] = None
    presence: Annotated[
        bool | None,
        _in_redis(
            "Do not pull what no worker has pushed yet. Default: on; off with bsp, and for many workers."
        ),
    ] = None
    defer: Annotated[
        float | None,
        _NotNegative,
        _in_redis(
            "Log a slot's change, for the others to see it later, while they would gain less than this by "
            "it, per chunk; 0: never. Default: 0.01; 0 with bsp, and where fewer than 2% of rows are clicks.",
            metavar="NATS",
            options=("--defer", "--hold-back"),
        ),
    ] = None
    kkt: Annotated[
        bool | None, _in_redis("Log changes that leave a weight at zero; with {l1}. Default: off.")
    ] = None
    engine: EngineName = None
    """None: processes."""
    master: Master = None
    staging: Annotated[
        Place | None,
        _engine(
            "With {engine}: raw files first become a hashed data set in this folder, which all machines "
            "share, or behind this URI. Spark needs one for raw files.",
            metavar="DIR",
            kind=str | None,
        ),
    ] = None
    keep_staging: Annotated[
        bool, _engine("Keep the hashed data set in {staging}; else it is removed after the job.")
    ] = False
    stream: Annotated[
        StreamUrl | None,
        _stream(
            "Train on the rows that `ctr join` writes to this stream, until it is stopped: "
            "`redis://host:port/0?stream=NAME`. With {store}, a spec, and no INPUT.",
            metavar="URL",
        ),
    ] = None
    publish_every: Annotated[
        Duration,
        _stream(
            "With {stream}: time between versions, which go to {model} and {publish}.",
            metavar="TIME",
            kind=str,
            default="60s",
        ),
    ] = 60.0
    """Seconds."""
    keep_versions: Annotated[
        int,
        Field(ge=2),
        _stream(
            "With {stream}: the number of its latest versions that stay in {publish}; older ones that no "
            "label points to are removed.",
            metavar="N",
        ),
    ] = 100
    max_loss_rise: Annotated[
        float,
        _NotNegative,
        _stream(
            "With {stream}: no version is published, and the label goes back to the one before, while the "
            "log loss of new rows is higher than before by more than this share.",
            metavar="SHARE",
        ),
    ] = 0.2
    max_miscalibration: Annotated[
        float,
        _NotNegative,
        _stream(
            "The same while predictions are too high or too low by more than this share.", metavar="SHARE"
        ),
    ] = 0.2
    max_evidence: Annotated[
        float | None,
        Field(gt=0),
        _stream(
            "With {stream}: a feature's sum of squared gradients stops here, so that its weight goes on "
            "following what changes. 100 is about 600 examples of it where 20% are clicks.",
            metavar="SUM",
        ),
    ] = None
    checkpoint: Annotated[Path | None, _in_redis("Write checkpoints here.", metavar="DIR")] = None
    checkpoint_every: Annotated[
        Duration,
        _in_redis(
            "Time between checkpoints, such as 30s or 5m.",
            metavar="TIME",
            kind=str,
            default=f"{CHECKPOINT_EVERY_S:g}s",
        ),
    ] = CHECKPOINT_EVERY_S
    """Seconds."""
    resume: Annotated[bool, _in_redis("Go on from the checkpoint in {checkpoint}.")] = False
    lease: Annotated[
        Lease, _in_redis("Seconds without a heartbeat after which a worker counts as dead. Default: 10.")
    ] = None
    stall_timeout: Annotated[
        float,
        _Positive,
        _in_redis(
            "A worker that is alive but makes no progress for so long, such as one whose disk hangs, counts "
            "as dead.",
            metavar="SECONDS",
        ),
    ] = STALL_S
    on_bad_rows: BadRows = "fail"
    max_bad_fraction: MaxBadFraction = MOST_BAD
