"""`find_settings`: which settings to try next, after Optuna, and how far each gets, in parallel."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import inf
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ctr.errors import ModelError
from ctr.optimizers import choose_optimizer
from ctr.packages import require_packages
from ctr.tune.candidates import Candidate
from ctr.tune.folds import Fold
from ctr.tune.trial import Judged, run_trial

if TYPE_CHECKING:
    from optuna import Study
    from optuna import Trial as Asked

SPACE: Mapping[str, tuple[float, float]] = {
    "alpha": (0.003, 3.0),
    "beta": (0.1, 3.0),  # from so much of what suits the rate of clicks
    "l1": (0.001, 3.0),
    "l2": (0.001, 30.0),
}
"""Where each setting of FTRL is looked for, on a logarithmic scale."""
_PENALTIES = ("l1", "l2")
_NO_PENALTY = 0.003
_FIRST: tuple[Mapping[str, float], ...] = (
    {"alpha": 0.1, "beta": 1.0, "l1": 0.001, "l2": 0.001},
    {"alpha": 0.03, "l1": 0.001, "l2": 1.0},
    {"alpha": 0.2, "l1": 0.001, "l2": 3.0},
    {"alpha": 1.0, "l1": 1.0, "l2": 0.1},
)
"""Tried before all others: the defaults; with a beta that suits the rate of clicks, what suits rare features,
many rows, and few of both."""
_CROSSES, _SCALED = "crosses", "scaled"
_AHEAD = 8
"""Trials that begin before the first of them is known, for the same outcome with any number of workers."""
_AT_RANDOM = 12
"""Trials after which the sampler looks at what came of them."""


@dataclass(frozen=True, slots=True)
class Tried:
    """Settings, and what came of them."""

    number: int
    """Of the trial, from 1."""
    settings: Mapping[str, float]
    judged: Judged
    crosses: int = 0
    """Of the suggested ones, how many the examples had."""
    scales: Mapping[str, float] = field(default_factory=dict)
    """Of the fields and crosses; empty: all were 1."""


def require_optuna() -> None:
    """Raise DataError where it is missing."""
    require_packages("the search for settings", {"optuna": "'optuna>=4.0'"})


def find_settings(
    candidates: Sequence[Candidate],
    folds: Sequence[Fold],
    *,
    trials: int,
    most_passes: int,
    fixed: Mapping[str, float] | None = None,
    workers: int = 1,
    seed: int = 0,
    limit_s: float = inf,
    stop: Event | None = None,
    on_trial: Callable[[Sequence[Tried]], None] = lambda tried: None,
) -> list[Tried]:
    """Try so many settings of FTRL, those that are `fixed` among them; all that were tried, in their order.

    `candidates`: the same rows with other features, which are tried, too; the first has neither suggested
    crosses nor scales.
    Trials run on threads, as kernels need no GIL, over one memory map. The same for the same seed, whatever
    the number of workers: results are told to the sampler in the order of the trials, and with a fixed lag.
    After `limit_s` no other trial begins. Once `stop` is set, those that have begun end, and do not count.
    `on_trial` gets all so far after each.
    """
    fixed, ends = dict(fixed or {}), perf_counter() + limit_s
    beta = candidates[0].by_fold[0].suited_beta
    known = {(each.crosses, bool(each.scales)): each for each in candidates}
    space = {**SPACE, "beta": (SPACE["beta"][0] * beta, SPACE["beta"][1])}
    space = {name: limits for name, limits in space.items() if name not in fixed}
    choices: dict[str, list[Any]] = {
        _CROSSES: sorted({c for c, _ in known}),
        _SCALED: sorted({s for _, s in known}),
    }
    choices = {name: values for name, values in choices.items() if len(values) > 1}
    study, told = _study(seed, choices, beta), Event() if stop is None else stop
    waiting: deque[tuple[Asked, Mapping[str, float], Candidate, Future[Judged]]] = deque()
    done: list[Tried] = []
    ahead = max(_AHEAD, workers)
    with ThreadPoolExecutor(workers, "trial") as pool:
        for number in range(trials + ahead):
            if number >= ahead and waiting:
                asked, settings, chosen, future = waiting.popleft()
                judged = future.result()
                if told.is_set() and judged.hopeless:
                    break
                _tell(study, asked, judged)
                done.append(Tried(len(done) + 1, settings, judged, chosen.crosses, chosen.scales))
                on_trial(done)
            if number < trials and not told.is_set() and perf_counter() < ends:
                asked = study.ask(_distributions(space, choices))
                of_asked = dict(asked.params)
                chosen = known[of_asked.pop(_CROSSES, 0), of_asked.pop(_SCALED, False)]
                settings = {name: _written(name, value) for name, value in of_asked.items()} | fixed
                best = min((each.judged.cost for each in done), default=inf)
                run = partial(_run, chosen, folds, settings, most_passes, best, told)
                waiting.append((asked, settings, chosen, pool.submit(run)))
    return done


def _run(
    chosen: Candidate,
    folds: Sequence[Fold],
    settings: Mapping[str, float],
    most_passes: int,
    to_beat: float,
    stop: Event,
) -> Judged:
    try:
        optimizer = choose_optimizer(settings)
        return run_trial(
            chosen.by_fold, folds, optimizer, most_passes=most_passes, to_beat=to_beat, stop=stop
        )
    except ModelError:  # these settings diverge
        return Judged(hopeless=True)


def _study(seed: int, choices: Mapping[str, Sequence[Any]], beta: float) -> Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=seed, multivariate=True, constant_liar=True, n_startup_trials=_AT_RANDOM
        )
    study = optuna.create_study(sampler=sampler)
    for number, first in enumerate(_FIRST):  # of which the first are the defaults, without crosses and scales
        chosen = {name: values[-1 if number else 0] for name, values in choices.items()}
        study.enqueue_trial({"beta": beta, **first, **chosen})
    return study


def _distributions(
    space: Mapping[str, tuple[float, float]], choices: Mapping[str, Sequence[Any]]
) -> dict[str, Any]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    found: dict[str, Any] = {
        name: FloatDistribution(low, high, log=True) for name, (low, high) in space.items()
    }
    return found | {name: CategoricalDistribution(values) for name, values in choices.items()}


def _written(name: str, value: float) -> float:
    """To two digits, as people write it and as good; the smallest penalties are none."""
    return 0.0 if name in _PENALTIES and value < _NO_PENALTY else float(f"{value:.2g}")


def _tell(study: Study, asked: Asked, judged: Judged) -> None:
    from optuna.trial import TrialState

    for step, loss in enumerate(judged.losses):
        asked.report(loss, step)
    if judged.by_pass:
        study.tell(asked, judged.cost)
    else:
        study.tell(asked, state=TrialState.PRUNED if judged.losses else TrialState.FAIL)
