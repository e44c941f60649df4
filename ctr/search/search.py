"""`Search`: runs trials in parallel, with settings suggested by Optuna."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ctr.errors import ModelError
from ctr.features.threads import Threads
from ctr.optimizers import choose_optimizer
from ctr.packages import require_packages
from ctr.search.candidates import Candidate, Plan
from ctr.search.folds import Fold
from ctr.search.trial import Judged, run_trial

if TYPE_CHECKING:
    from optuna import Study
    from optuna import Trial as OptunaTrial

SPACE: Mapping[str, tuple[float, float]] = {
    "alpha": (0.003, 3.0),
    "beta": (0.1, 3.0),  # the lower bound is multiplied by `Examples.suited_beta`
    "l1": (0.001, 3.0),
    "l2": (0.001, 30.0),
}
"""The range of each setting of FTRL, searched on a logarithmic scale."""
_PENALTIES = ("l1", "l2")
_NO_PENALTY = 0.003
_FIRST: tuple[Mapping[str, float], ...] = (
    {"alpha": 0.1, "beta": 1.0, "l1": 0.001, "l2": 0.001},
    {"alpha": 0.03, "l1": 0.001, "l2": 1.0},
    {"alpha": 0.2, "l1": 0.001, "l2": 3.0},
    {"alpha": 1.0, "l1": 1.0, "l2": 0.1},
)
"""Tried first: the defaults, then, with a beta that suits the click rate, settings that suit rare features,
many rows, and little data."""
_CROSSES, _SCALED = "crosses", "scaled"
AHEAD = 8
"""Trials that begin before the first has a result, so that the number of workers does not matter."""
_SHOWN_EVERY_S = 0.5
_AT_RANDOM = 12
"""Trials with random settings, before the sampler uses results."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial: its settings and its result."""

    number: int
    """The number of the trial, from 1."""
    settings: Mapping[str, float]
    judged: Judged
    crosses: int = 0
    """The number of suggested crosses in its examples."""
    scales: Mapping[str, float] = field(default_factory=dict)
    """Scales of fields and crosses; empty: all were 1."""


def require_optuna() -> None:
    """Raises DataError if Optuna is not installed."""
    require_packages("the search for settings", {"optuna": "'optuna>=4.0'"})


class Ended(StrEnum):
    """Why a search ended."""

    TRIALS = "trials"
    """All trials were run."""
    BUDGET = "budget"
    """The trials have learnt as many features as they may."""
    TIME = "time"
    """The time limit was reached; a faster machine runs more trials, and may find other settings."""
    STOP = "stop"
    """It was stopped."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a search."""

    tried: Sequence[Tried]
    rows: int
    """The rows learnt in all trials."""
    fraction: float
    """The fraction of the search that is done, 0 to 1, by work or by time, whichever is further."""


@dataclass(slots=True)
class _RunningTrial:
    """A running trial."""

    optuna_trial: OptunaTrial
    settings: Mapping[str, float]
    candidate: Candidate
    judged: Judged
    future: Future[Judged]

    @property
    def work(self) -> float:
        """Features learnt so far."""
        return self.judged.rows * self.candidate.by_fold[0].features_per_row


@dataclass(slots=True)
class Search:
    """A search for the settings of FTRL that are not fixed, and for the best of the candidates.

    `candidates`: the same rows with other features; the first has neither suggested crosses nor scales.
    """

    candidates: Sequence[Candidate]
    folds: Sequence[Fold]
    plan: Plan
    stop: Event = field(default_factory=Event)
    """Once it is set, running trials end, and do not count."""
    on_progress: Callable[[Progress], None] = lambda progress: None
    tried: list[Tried] = field(default_factory=list)
    """The trials that are done, in their order."""
    ended: Ended = Ended.TRIALS
    _running: deque[_RunningTrial] = field(default_factory=deque)
    _work: float = 0.0
    """Features learnt in the trials that are done."""
    _started: float = field(default_factory=perf_counter)
    _shown: float = 0.0

    def run(self) -> None:
        """Run trials; their results are then in `tried`, and why the search ended in `ended`.

        Trials run on threads, as kernels release the GIL, and share one memory map. The result is the same
        for the same seed, whatever the number of workers and their speed, unless the time limit ends the
        search: the sampler gets results in the order of the trials, with a fixed lag.
        """
        beta = self.candidates[0].by_fold[0].suited_beta
        space = {**SPACE, "beta": (SPACE["beta"][0] * beta, SPACE["beta"][1])}
        space = {name: limits for name, limits in space.items() if name not in self.plan.fixed}
        candidates = {(each.crosses, bool(each.scales)): each for each in self.candidates}
        choices: dict[str, list[Any]] = {
            _CROSSES: sorted({crosses for crosses, _ in candidates}),
            _SCALED: sorted({scaled for _, scaled in candidates}),
        }
        choices = {name: values for name, values in choices.items() if len(values) > 1}
        study = _study(self.plan.seed, choices, beta)
        with Threads(min(self.plan.workers, AHEAD), "trial") as threads:
            for number in range(self.plan.trials + AHEAD):
                if number >= AHEAD and self._running and not self._finish(study):
                    break
                if number < self.plan.trials and self._may_begin():
                    optuna_trial = study.ask(_distributions(space, choices))
                    params = dict(optuna_trial.params)
                    candidate = candidates[params.pop(_CROSSES, 0), params.pop(_SCALED, False)]
                    settings = {name: _rounded(name, value) for name, value in params.items()}
                    self._begin(threads, optuna_trial, settings | dict(self.plan.fixed), candidate)

    def _is_over(self) -> bool:
        return perf_counter() - self._started >= self.plan.limit_s

    def _may_begin(self) -> bool:
        if self.ended is Ended.TRIALS:
            expected = self._work / max(len(self.tried), 1) * (len(self._running) + 1)
            if self.stop.is_set():
                self.ended = Ended.STOP
            elif self._is_over() and (self.tried or self._running):
                self.ended = Ended.TIME
            elif self.tried and self._work + expected > self.plan.most_work:
                self.ended = Ended.BUDGET
        return self.ended is Ended.TRIALS

    def _begin(
        self, threads: Threads, optuna_trial: OptunaTrial, settings: Mapping[str, float], candidate: Candidate
    ) -> None:
        first = not self.tried and not self._running  # runs to its end, however slow the machine is
        ended = self.stop.is_set if first else lambda: self.stop.is_set() or self._is_over()
        to_beat = min((each.judged.cost for each in self.tried), default=inf)
        judged = Judged()

        def run() -> Judged:
            try:
                return run_trial(
                    candidate.by_fold,
                    self.folds,
                    choose_optimizer(settings),
                    most_passes=self.plan.most_epochs,
                    to_beat=to_beat,
                    ended=ended,
                    judged=judged,
                )
            except ModelError:  # these settings diverge
                return Judged(hopeless=True, rows=judged.rows)

        self._running.append(_RunningTrial(optuna_trial, settings, candidate, judged, threads.submit(run)))

    def _finish(self, study: Study) -> bool:
        """Wait for the oldest running trial, and count it; returns False if it was cancelled."""
        from optuna.trial import TrialState

        oldest = self._running[0]
        while not wait([oldest.future], _SHOWN_EVERY_S).done:
            self._show()
        judged = oldest.future.result()
        if judged.cut:
            self.ended = Ended.STOP if self.stop.is_set() else Ended.TIME
            return False
        self._running.popleft()
        self._work += oldest.work
        for step, loss in enumerate(judged.losses):
            oldest.optuna_trial.report(loss, step)
        if judged.by_pass:
            study.tell(oldest.optuna_trial, judged.cost)
        else:
            study.tell(oldest.optuna_trial, state=TrialState.PRUNED if judged.losses else TrialState.FAIL)
        number, of = len(self.tried) + 1, oldest.candidate
        self.tried.append(Tried(number, oldest.settings, judged, of.crosses, of.scales))
        self._show()
        return True

    def _show(self) -> None:
        """Report the progress, which never decreases."""
        work = self._work + sum(each.work for each in self._running)
        rows = sum(each.judged.rows for each in self.tried) + sum(each.judged.rows for each in self._running)
        if self.tried:
            expected = min(self._work / len(self.tried) * self.plan.trials, self.plan.most_work)
            self._shown = max(self._shown, min(work / max(expected, 1.0), 0.99))
        limit_s = self.plan.limit_s
        by_time = (perf_counter() - self._started) / limit_s if limit_s > 0 else 1.0
        self._shown = max(self._shown, min(by_time, 0.99))
        self.on_progress(Progress(self.tried, rows, self._shown))


def _study(seed: int, choices: Mapping[str, Sequence[Any]], beta: float) -> Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=seed, multivariate=True, constant_liar=True, n_startup_trials=_AT_RANDOM
        )
    study = optuna.create_study(sampler=sampler)
    for number, settings in enumerate(_FIRST):  # the first are the defaults, without crosses and scales
        choice = {name: values[-1 if number else 0] for name, values in choices.items()}
        study.enqueue_trial({"beta": beta, **settings, **choice})
    return study


def _distributions(
    space: Mapping[str, tuple[float, float]], choices: Mapping[str, Sequence[Any]]
) -> dict[str, Any]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    numbers = {name: FloatDistribution(low, high, log=True) for name, (low, high) in space.items()}
    return numbers | {name: CategoricalDistribution(values) for name, values in choices.items()}


def _rounded(name: str, value: float) -> float:
    """The value with two digits, which are readable and precise enough; the smallest penalties become 0."""
    return 0.0 if name in _PENALTIES and value < _NO_PENALTY else float(f"{value:.2g}")
