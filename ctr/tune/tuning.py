"""`tune`: from a source of examples to the settings that suit it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any

import numpy as np

from ctr.errors import DataError
from ctr.tune.candidates import Candidate, Reopen, hashed, scaled
from ctr.tune.examples import Examples
from ctr.tune.folds import Fold, folds_of
from ctr.tune.scales import MOST_PARTS, coded
from ctr.tune.search import Tried, find_settings, require_optuna
from features import ExampleSource, scratch_folder

TRIALS = 40
MOST_EPOCHS = 30
_EPOCHS_OF_MANY = 3
_UNLIKE, _CLICKS = 10, 20  # click rates of fifths, each of which should have so many clicks


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a search has found."""

    tried: tuple[Tried, ...]
    """In their order; the first is the defaults."""
    rows: int
    """That were used: to learn from and to judge by."""
    folds: tuple[Fold, ...]
    seconds: float
    """Of the search, without hashing."""
    hashing_s: float
    stopped: bool
    """Whether it was told to end before its time."""
    click_rates: tuple[float, ...] = ()
    """Of each fifth of the rows."""

    @property
    def ranked(self) -> list[Tried]:
        """The best first."""
        return sorted(self.tried, key=lambda each: (each.judged.cost, each.number))

    @property
    def best(self) -> Tried:
        """The lowest log loss of the rows held out, or one pass with the defaults if `kept`."""
        first = self.tried[0]
        return replace(first, judged=first.judged.first_pass) if self.kept else self.ranked[0]

    @property
    def kept(self) -> bool:
        """Whether nothing beats one pass with the defaults by more than the noise of the rows held out.

        Which is the standard error of the difference of both, from that of a hundred parts of the rows.
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
    def judged_by(self) -> str:
        """Which rows, in words."""
        if len(self.folds) == 1:
            return f"the last {len(self.folds[0].judged):,} of {self.rows:,} rows"
        return f"each fifth of {self.rows:,} rows, trained on the others"

    @property
    def gain(self) -> str:
        """The best log loss beside that of the defaults, in words."""
        best, default = self.best.judged.loss, self.default_loss
        if self.kept:
            return f"log loss {best:.5f} with the default settings: nothing beat them by more than its noise"
        if default is None:
            return f"log loss {best:.5f}; the default settings diverge"
        return f"log loss {best:.5f}; with the default settings {default:.5f} ({best / default - 1:+.2%})"

    @property
    def warnings(self) -> list[str]:
        """That the rows look sorted, which misleads trials as it does training."""
        rates = self.click_rates
        if not rates or sum(rates) * self.rows < _CLICKS * len(rates) ** 2:
            return []
        if max(rates) < _UNLIKE * min(rates):
            return []
        return [
            f"the rows look sorted: {', '.join(f'{rate:.2%}' for rate in rates)} of their fifths are clicks; "
            "`ctr features build --shuffle 0` mixes them"
        ]

    @property
    def options(self) -> dict[str, Any]:
        """Of `ctr train`, by their names."""
        found: dict[str, Any] = {"epochs": self.best.judged.best_pass, **self.best.settings}
        return found | (
            {"scale": [f"{k}={v:g}" for k, v in self.best.scales.items()]} if self.best.scales else {}
        )

    @property
    def measured(self) -> dict[str, Any]:
        """What a file of settings says of them."""
        best = self.best.judged
        return {
            "rows": self.rows,
            "held_out_rows": sum(len(fold.judged) for fold in self.folds),
            "folds": len(self.folds),
            "trials": len(self.tried),
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
    *,
    crossed: Mapping[int, ExampleSource] | None = None,
    reopen: Reopen | None = None,
    stop_row: int | None = None,
    most_rows: int | None = None,
    fixed: Mapping[str, float] | None = None,
    trials: int = TRIALS,
    most_epochs: int = MOST_EPOCHS,
    fraction: float | None = None,
    workers: int = 1,
    seed: int = 0,
    limit_s: float = inf,
    stop: Event | None = None,
    on_rows: Callable[[int], None] = lambda rows: None,
    on_trial: Callable[[Sequence[Tried]], None] = lambda tried: None,
) -> Tuned:
    """Search settings of FTRL for the rows of `source` before `stop_row`.

    Of more rows than `most_rows` it takes the first ones, and makes 3 passes at most, as each costs time for
    all rows. Raw rows are hashed into data sets in a temporary folder in `scratch`; `on_rows` gets how many
    are. `crossed`: raw sources of the same rows with so many suggested crosses each, to be tried, too;
    `reopen`: opens them for another spec, and scales of fields are tried, too, unless the spec has some, or
    more than `MOST_PARTS` fields and crosses.
    `fraction`: see `folds_of`; the rest: see `find_settings`.

    Raises DataError, also when all rows are of one class, and when no trial came to its end, and
    KeyboardInterrupt if none did before `stop`.
    """
    require_optuna()
    stop = Event() if stop is None else stop
    started = perf_counter()
    end = min((row for row in (stop_row, most_rows) if row is not None), default=None)
    with scratch_folder(scratch, ".tune-") as folder:
        candidates, folds = _candidates(
            {0: source, **(crossed or {})}, folder, end, fraction, reopen, workers, on_rows
        )
        rows = candidates[0].by_fold[0].rows
        labels, _ = candidates[0].by_fold[0].labels([range(rows)])
        rates = tuple(float(part.mean()) for part in np.array_split(labels, 5))
        if rows == most_rows:
            most_epochs = min(most_epochs, _EPOCHS_OF_MANY)
        prepared = perf_counter()
        tried = find_settings(
            candidates,
            folds,
            trials=trials,
            most_passes=most_epochs,
            fixed=fixed,
            workers=workers,
            seed=seed,
            limit_s=limit_s,
            stop=stop,
            on_trial=on_trial,
        )
    seconds = perf_counter() - prepared
    found = Tuned(tuple(tried), rows, folds, seconds, prepared - started, stop.is_set(), rates)
    if not any(isfinite(each.judged.loss) for each in tried):
        if stop.is_set():
            raise KeyboardInterrupt
        raise DataError("training diverged under all settings: look for huge values in the data.")
    return found


def _candidates(
    sources: Mapping[int, ExampleSource],
    folder: Path,
    end: int | None,
    fraction: float | None,
    reopen: Reopen | None,
    workers: int,
    on_rows: Callable[[int], None],
) -> tuple[list[Candidate], tuple[Fold, ...]]:
    """The rows of `sources` before `end`, by their crosses, with scales and without; and their folds."""
    found: list[Candidate] = []
    folds: tuple[Fold, ...] = ()
    parts = [len(source.spec.names) for source in sources.values()]
    scales = min(parts) > 1 and max(parts) <= MOST_PARTS and not sources[0].spec.scales
    for count, source in sources.items():
        plain = hashed(source, folder / f"hashed-{count}", end, on_rows)
        codes = None
        if reopen is not None and scales:
            codes = hashed(reopen(coded(source.spec)), folder / f"coded-{count}", end)
        examples = Examples.of(plain, end, codes)
        if not found:
            _require_classes(examples)
            folds = folds_of(examples.rows, fraction)
        found.append(Candidate((examples,) * len(folds), count))
        if codes is not None:
            found.append(scaled(found[-1], source.spec, folds, workers))
    return found, folds


def _require_classes(examples: Examples) -> None:
    """Raise DataError when all of the examples are clicks, or none is."""
    labels, _ = examples.labels([range(examples.rows)])
    clicks = np.count_nonzero(labels)
    if clicks in (0, examples.rows):
        which = "clicks" if clicks else "without a click"
        raise DataError(
            f"all {examples.rows:,} rows to search with are {which}, and settings are found on rows of both "
            "classes. Check the spec's label, and whether the rows are sorted (`ctr features build "
            "--shuffle 0` mixes them)."
        )


def described(found: Tuned) -> list[str]:
    """The best settings as a command line has them, and a line on the scales, if there are any."""
    options = {"epochs": found.best.judged.best_pass, **found.best.settings}
    settings = " ".join(f"--{name} {value:g}" for name, value in options.items())
    return [settings, *scales_in_words(found.best.scales)]


def scales_in_words(scales: Mapping[str, float]) -> list[str]:
    """A line on which fields and crosses have the largest and smallest; none without scales."""
    if not scales:
        return []
    ordered = sorted(scales, key=lambda name: -scales[name])
    ends = [f"{name} {scales[name]:g}" for name in ordered]
    shown = [*ends[:3], "...", *ends[-3:]] if len(ends) > 6 else ends
    return [f"fields scaled: {', '.join(shown)}"]
