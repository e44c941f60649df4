"""`tune`: from a source of examples to the settings that suit it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any

from ctr.errors import DataError
from ctr.tune.examples import Examples
from ctr.tune.folds import Fold, folds_of
from ctr.tune.search import Tried, find_settings, require_optuna
from features import BLOCK_ROWS, DatasetSource, ExampleSource, scratch_folder, write_dataset

TRIALS = 40
MOST_EPOCHS = 30


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a search has found."""

    tried: tuple[Tried, ...]
    """In their order; the first are about the defaults."""
    rows: int
    """That were used: to learn from and to judge by."""
    folds: tuple[Fold, ...]
    seconds: float
    """Of the search, without hashing."""
    hashing_s: float
    stopped: bool
    """Whether it was told to end before its time."""

    @property
    def ranked(self) -> list[Tried]:
        """The best first."""
        return sorted(self.tried, key=lambda each: (each.judged.loss, each.number))

    @property
    def best(self) -> Tried:
        """The lowest log loss of the rows held out."""
        return self.ranked[0]

    @property
    def default(self) -> Tried:
        """The defaults, of which more passes may have been made."""
        return self.tried[0]

    @property
    def options(self) -> dict[str, float]:
        """Of `ctr train`, by their names."""
        return {"epochs": self.best.judged.best_pass, **self.best.settings}

    @property
    def measured(self) -> dict[str, Any]:
        """What a file of settings says of them."""
        best = self.best.judged
        return {
            "rows": self.rows,
            "held_out_rows": sum(len(fold.judged) for fold in self.folds),
            "folds": len(self.folds),
            "trials": len(self.tried),
            "held_out_logloss": best.loss,
            "held_out_calibration": best.calibration,
            "held_out_logloss_of_defaults": self.default.judged.by_pass[0],
            "seconds": round(self.seconds, 3),
        }

    def to_json(self) -> dict[str, Any]:
        """The summary that `--json` writes."""
        return {
            "options": self.options,
            **self.measured,
            "hashing_seconds": self.hashing_s,
            "interrupted": self.stopped,
            "tried": [
                {
                    "number": each.number,
                    **each.settings,
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
    stop_row: int | None = None,
    most_rows: int | None = None,
    trials: int = TRIALS,
    most_epochs: int = MOST_EPOCHS,
    fraction: float | None = None,
    workers: int = 1,
    seed: int = 0,
    stop: Event | None = None,
    on_rows: Callable[[int], None] = lambda rows: None,
    on_trial: Callable[[Sequence[Tried]], None] = lambda tried: None,
) -> Tuned:
    """Search settings of FTRL for the rows of `source` before `stop_row`.

    Of more rows than `most_rows` it takes the last ones. Raw rows are hashed once, into a data set in a
    temporary folder in `scratch`; `on_rows` gets how many are. `fraction`: see `folds_of`.

    Raises DataError, also when no trial came to its end, and KeyboardInterrupt if none did before `stop`.
    """
    require_optuna()
    stop = Event() if stop is None else stop
    started = perf_counter()
    with scratch_folder(scratch, ".tune-") as folder:
        data = source
        if not isinstance(data, DatasetSource):
            write_dataset(
                source.batches(BLOCK_ROWS, stop=stop_row), source.spec, folder / "hashed", progress=on_rows
            )
            data = DatasetSource(folder / "hashed")
        examples = Examples.of(data, stop_row, most_rows)
        folds = folds_of(examples.rows, fraction)
        hashed = perf_counter()
        tried = find_settings(
            examples,
            folds,
            trials=trials,
            most_passes=most_epochs,
            workers=workers,
            seed=seed,
            stop=stop,
            on_trial=on_trial,
        )
    found = Tuned(
        tuple(tried), examples.rows, folds, perf_counter() - hashed, hashed - started, stop.is_set()
    )
    if not any(isfinite(each.judged.loss) for each in tried):
        if stop.is_set():
            raise KeyboardInterrupt
        raise DataError("training diverged under all settings: look for huge values in the data.")
    return found


def described(options: Mapping[str, float]) -> str:
    """Options as a command line has them."""
    return " ".join(f"--{name} {value:g}" for name, value in options.items())
