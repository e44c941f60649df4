"""`tune`: finds settings for a source of examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite, sqrt
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any

import numpy as np

from ctr.errors import DataError
from ctr.features import DatasetSource, ExampleSource, FeatureSpec, scratch_folder
from ctr.search.candidates import Hashing, OnRows, Plan
from ctr.search.folds import Fold, RawRows
from ctr.search.search import Ended, Progress, Search, Tried, require_optuna

_EPOCHS_OF_MANY = 3
_UNLIKE, _CLICKS = 10, 20  # rows look sorted if the click rates of fifths, of 20 clicks each, differ tenfold


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome of a search."""

    tried: tuple[Tried, ...]
    """The trials in their order; the first one has the defaults."""
    rows: int
    """The rows that were used, for learning and scoring."""
    folds: tuple[Fold, ...]
    seconds: float
    """The duration of the search, without hashing."""
    hashing_s: float
    ended: Ended
    """Why there are no more trials."""
    most_trials: int
    """The number of trials in the plan."""
    click_rates: tuple[float, ...] = ()
    """The click rate of each fifth of the rows."""
    fitted: bool = False
    """True if the rows come from a data set whose spec has learnt from all of them."""
    condition: str | None = None
    """The condition of the rows that trials are scored on; None: those at the end, or each fifth."""
    crossed: FeatureSpec | None = None
    """The spec with the crosses of the best trial; None: it has none."""

    @property
    def stopped(self) -> bool:
        """True if it was stopped early."""
        return self.ended is Ended.STOP

    @property
    def ranked(self) -> list[Tried]:
        """The trials, the best first."""
        return sorted(self.tried, key=lambda each: (each.judged.cost, each.number))

    @property
    def best(self) -> Tried:
        """The trial with the lowest log loss, or one pass with the defaults if `kept`."""
        first = self.tried[0]
        return replace(first, judged=first.judged.first_pass) if self.kept else self.ranked[0]

    @property
    def kept(self) -> bool:
        """True if no trial beats one pass with the defaults by more than the noise of the validation rows.

        The noise is the standard error of the difference, computed from a hundred parts of the rows.
        """
        best, first = self.ranked[0].judged, self.tried[0].judged.first_pass
        if not first.by_pass:
            return False
        gains = np.subtract(first.best_parts, best.best_parts)
        return bool(gains.sum() <= gains.std(ddof=1) * sqrt(gains.size))

    @property
    def default_loss(self) -> float | None:
        """Log loss of one pass with the defaults; None if that diverges."""
        return self.tried[0].judged.by_pass[0] if self.tried[0].judged.by_pass else None

    @property
    def scored_on(self) -> str:
        """The rows that trials are scored on, in words."""
        if self.condition is not None:
            return f"the {len(self.folds[0].judged):,} of {self.rows:,} rows where {self.condition}"
        if len(self.folds) == 1:
            return f"the last {len(self.folds[0].judged):,} of {self.rows:,} rows"
        return f"each fifth of {self.rows:,} rows, trained on the others"

    @property
    def gain(self) -> str:
        """The best log loss compared with that of the defaults, in words."""
        best, default = self.best.judged.loss, self.default_loss
        if self.kept:
            return f"log loss {best:.5f} with the default settings: nothing beat them by more than its noise"
        if default is None:
            return f"log loss {best:.5f}; the default settings diverge"
        return (
            f"log loss {best:.5f}, slightly optimistic as the lowest of {len(self.tried)} on the same rows; "
            f"with the default settings {default:.5f} ({best / default - 1:+.2%})"
        )

    @property
    def warnings(self) -> list[str]:
        """Warnings of what misleads trials: rows that look sorted, steps that have seen validation rows."""
        warnings = []
        rates = self.click_rates
        enough = sum(rates) * self.rows >= _CLICKS * len(rates) ** 2
        if rates and enough and max(rates) >= _UNLIKE * min(rates):
            warnings.append(
                f"the rows look sorted: {', '.join(f'{rate:.2%}' for rate in rates)} of their fifths are "
                "clicks; `ctr features build --shuffle 0` mixes them"
            )
        if self.fitted:
            warnings.append(
                "the data set's steps have learnt from all of its rows, those that trials are scored on "
                "among them: give the raw files for log losses of unseen rows"
            )
        return warnings

    @property
    def cut(self) -> str | None:
        """Why there are fewer trials than planned, in words; None if there are not."""
        trials = f"{len(self.tried)} of {self.most_trials} trials"
        if self.ended is Ended.TIME:
            return f"{trials}: time limit reached; a faster machine may choose other settings"
        if self.ended is Ended.BUDGET:
            return f"{trials}: trial budget for this many rows used up (same on any machine)"
        return None

    @property
    def facts(self) -> dict[str, Any]:
        """The entry about the search in a model's manifest."""
        return {
            "trials": len(self.tried),
            "most_trials": self.most_trials,
            "ended": self.ended.value,
            "rows": self.rows,
            "scored_on": self.scored_on,
            "logloss": self.best.judged.loss,
            "kept_defaults": self.kept,
        }

    @property
    def options(self) -> dict[str, Any]:
        """The best options of `ctr train`, by name."""
        settings = {"epochs": self.best.judged.best_pass, **self.best.settings}
        scale = [f"{name}={value:g}" for name, value in self.best.scales.items()]
        return settings | ({"scale": scale} if scale else {})

    @property
    def measured(self) -> dict[str, Any]:
        """The facts about the best settings in a settings file."""
        best = self.best.judged
        return {
            "rows": self.rows,
            "held_out_rows": sum(len(fold.judged) for fold in self.folds),
            "folds": len(self.folds),
            "trials": len(self.tried),
            "ended": self.ended.value,
            "kept_defaults": self.kept,
            "crosses": self.best.crosses,
            "scaled": bool(self.best.scales),
            "held_out_logloss": best.loss,
            "held_out_calibration": best.calibration,
            "held_out_logloss_of_defaults": self.default_loss,
            "seconds": round(self.seconds, 3),
        }

    def to_json(self) -> dict[str, Any]:
        """The summary that `--json` writes."""
        return {
            "options": self.options,
            **self.measured,
            "hashing_seconds": self.hashing_s,
            "interrupted": self.stopped,
            "warnings": self.warnings,
            "tried": [
                {
                    "number": each.number,
                    **each.settings,
                    "crosses": each.crosses,
                    "scaled": bool(each.scales),
                    "epochs": each.judged.best_pass,
                    "logloss": each.judged.loss if isfinite(each.judged.loss) else None,
                    "logloss_by_pass": each.judged.by_pass,
                    "given_up": each.judged.hopeless,
                }
                for each in self.tried
            ],
        }


def tune(
    source: ExampleSource,
    scratch: Path,
    plan: Plan,
    *,
    raw: RawRows | None = None,
    crossed: Mapping[int, FeatureSpec] | None = None,
    stop: Event | None = None,
    on_rows: OnRows = lambda rows, fraction: None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Tuned:
    """Search settings of FTRL for the rows of `source`; hashing and search together take `plan.limit_s`.

    Raw rows are hashed into data sets in a temporary folder in `scratch`; `on_rows` follows this. `raw` reads
    the rows through other specs; with it, steps that learn from data learn from the training rows of each
    fold. `crossed`: specs to be tried in addition, by their number of suggested crosses.

    Raises DataError, for instance if all rows are of one class, or if all trials diverged, and
    KeyboardInterrupt if `stop` was set before the first trial ended.
    """
    require_optuna()
    stop = Event() if stop is None else stop
    started = perf_counter()
    with scratch_folder(scratch, ".tune-") as folder:
        candidates, folds = Hashing(folder, source, raw, plan, on_rows).candidates(crossed or {})
        rows = candidates[0].by_fold[0].rows
        labels, _ = candidates[0].by_fold[0].labels([range(rows)])
        rates = tuple(float(part.mean()) for part in np.array_split(labels, 5))
        most_epochs = plan.most_epochs
        if plan.most_rows is not None and rows >= plan.most_rows:
            most_epochs = min(most_epochs, _EPOCHS_OF_MANY)
        hashed_at = perf_counter()
        plan_after = replace(plan, most_epochs=most_epochs, limit_s=plan.limit_s - (hashed_at - started))
        search = Search(candidates, folds, plan_after, stop, on_progress)
        search.run()
    seconds = perf_counter() - hashed_at
    fitted = isinstance(source, DatasetSource) and any(field.learns for field in source.spec.all_fields)
    if not any(isfinite(each.judged.loss) for each in search.tried):
        if stop.is_set():
            raise KeyboardInterrupt
        raise DataError("training diverged under all settings: look for huge values in the data.")
    return Tuned(
        tuple(search.tried),
        rows,
        folds,
        seconds,
        hashed_at - started,
        search.ended,
        plan.trials,
        rates,
        fitted,
        None if raw is None or raw.validation is None else raw.validation.text,
    )


def described(tuned: Tuned) -> list[str]:
    """The best settings as options of a command line, and a line about the scales, if there are any."""
    settings = " ".join(f"--{name} {value:g}" for name, value in tuned.options.items() if name != "scale")
    return [settings, *scales_in_words(tuned.best.scales)]


def scales_in_words(scales: Mapping[str, float]) -> list[str]:
    """A line with the fields and crosses that have the largest and smallest scales; none without scales."""
    if not scales:
        return []
    ordered = [f"{name} {scales[name]:g}" for name in sorted(scales, key=lambda name: -scales[name])]
    shown = [*ordered[:3], "...", *ordered[-3:]] if len(ordered) > 6 else ordered
    return [f"fields scaled: {', '.join(shown)}"]
