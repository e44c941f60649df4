"""`suggest_crosses`: from raw files and their spec to crosses that improve the model together.

Method: the beam search of AutoCross (Luo et al., KDD 2019), with its field-wise logistic regression: the
margins of the model so far are frozen, and a candidate learns alone on top of them. Here the gain is measured
progressively, so it needs no other rows. After each round a model learns with the crosses chosen so far, and
the other candidates are scored again, as several may have the same effect.

The search runs twice. The first run leaves out the last fifth of the rows, on which it validates how many
crosses improve the model, if any. The second run chooses that many crosses on all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import log2
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ctr.crosses.rows import (
    Candidate,
    Crosses,
    Rows,
    Values,
    candidate_fields,
    cross_values,
    fields_of,
    pairs,
    read_rows,
    spec_of_values,
    triples,
)
from ctr.crosses.scorer import Margins, Score, Scorer, with_crosses
from ctr.crosses.suggestion import Chosen, Suggestion
from ctr.errors import DataError
from ctr.features import FeatureSpec, RawSource, fit, input_files, is_dataset
from ctr.features.threads import Threads

MOST_CROSSES = 20
"""An eighth of Criteo's first 48,000 rows gains 4.2 nats per 1,000 rows by 10 crosses chosen on the others,
4.6 by 20 and 4.4 by all, 22 to 27."""
MOST_ROWS = 1_000_000
_READING = 0.2  # share of the time
_ALPHAS = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Learning rates of models without crosses, of which the best is used: on top of a model that learns too
slowly, crosses would gain what its own fields should have."""
_HELD_OUT = 0.2
_SURE_ERRORS = 2.0  # standard errors by which the gain on validation rows must be above 0
_PATIENCE = 3  # rounds without a gain on validation rows
_FINALISTS = 150  # candidates that are scored again after the first round
_BEAM = 10  # pairs that are crossed with a third field


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A candidate that was chosen."""

    candidate: Candidate
    values: Values
    score: Score


def suggest_crosses(
    spec: FeatureSpec,
    inputs: Sequence[str | Path],
    *,
    most: int = MOST_CROSSES,
    rows: int = MOST_ROWS,
    stop: int | None = None,
    workers: int = 1,
    on_progress: Callable[[int, float], None] = lambda rows, fraction: None,
) -> Suggestion:
    """At most `most` crosses of the fields of `spec` that lower the log loss of these rows.

    Uses only rows before `stop`, if given, and at most `rows` rows, spread evenly. Features of windows are
    not crossed, as they depend on other rows. The result depends on neither the number of workers nor their
    speed. Raises DataError and SpecError.
    """
    if datasets := [path for path in inputs if is_dataset(path)]:
        raise DataError(
            f"{datasets[0]}: a hashed data set no longer has the values of its fields; give the raw files."
        )
    if "-" in inputs:
        raise DataError(
            "standard input can be read only once, and this takes several passes; write its rows to a file."
        )
    field_of = candidate_fields(spec)
    files = input_files(inputs)
    fitted = fit(spec.of_fields(spec.fields), files, rows=None if stop is None else [range(stop)])
    source = RawSource(fitted, files, threads=workers)
    values = RawSource(spec_of_values(fitted), files, threads=workers)
    with Threads(workers, "suggest") as threads:
        sample = read_rows(
            source, values, rows, stop, threads, lambda done, fraction: on_progress(done, _READING * fraction)
        )
        existing = frozenset(
            frozenset(field_of.get(part, part) for part in cross.of) for cross in spec.crosses
        )
        return _suggestion(
            spec,
            sample,
            existing,
            most,
            threads,
            lambda done, fraction: on_progress(done, _READING + (1 - _READING) * fraction),
        )


def _suggestion(
    spec: FeatureSpec,
    rows: Rows,
    existing: Crosses,
    most: int,
    threads: Threads,
    on_progress: Callable[[int, float], None],
) -> Suggestion:
    """At most `most` crosses of the fields of `rows`, none of them `existing`.

    `on_progress` gets the rows learnt so far, over all candidates, and the approximate progress, 0 to 1.
    """
    cut = len(rows) - int(_HELD_OUT * len(rows))
    trial = _Search(rows, cut, existing, threads, lambda rows, part: on_progress(rows, part / 2))
    pair_count, triple_count = trial.take_pairs(most), trial.take_triples(most)
    chosen: list[_Chosen] = []
    if trial.chosen:
        done = trial.learnt
        search = _Search(
            rows, len(rows), existing, threads, lambda rows, part: on_progress(done + rows, (1 + part) / 2)
        )
        search.take_pairs(pair_count)
        if triple_count:
            search.take_triples(len(search.chosen) + triple_count)
        chosen = search.chosen
    weights = rows.weights
    weight = float(weights[cut:].sum()) or 1.0
    gains = trial.base.losses[cut:] - trial.margins.losses[cut:]
    total = float(weights.sum())
    return Suggestion(
        spec=spec,
        chosen=tuple(
            Chosen(
                tuple(rows.fields[f] for f in each.candidate.fields),
                1000 * each.score.gain / total,
                1000 * each.score.error / total,
            )
            for each in chosen
        ),
        rows=len(rows),
        rows_in_all=rows.of,
        candidates=trial.scored,
        features=rows.chunk.slots.size + sum(each.values.features for each in chosen),
        alpha=trial.base.alpha,
        held_out_loss=float(trial.base.losses[cut:].sum()) / weight,
        held_out_gain=float(gains.sum()) / weight,
        held_out_error=_error(gains) / weight,
    )


@dataclass(slots=True)
class _Search:
    """A search that learns from the rows before `cut`, and validates on the others."""

    rows: Rows
    cut: int
    existing: Crosses
    threads: Threads
    on_progress: Callable[[int, float], None]
    chosen: list[_Chosen] = field(default_factory=list, init=False)
    scored: int = field(default=0, init=False)
    """The number of candidates that were scored."""
    learnt: int = field(default=0, init=False)
    """The number of rows learnt, over all candidates."""
    base: Margins = field(init=False)
    """The margins of the model without crosses."""
    margins: Margins = field(init=False)
    """The margins of the model with the chosen crosses."""
    _scorer: Scorer = field(init=False)

    def __post_init__(self) -> None:
        rows, cut = self.rows, self.cut
        self._scorer = Scorer(rows.labels[:cut], rows.weights[:cut], self.threads)
        self.base = self.margins = Margins.best(rows.chunk, rows.rate, _ALPHAS, cut, self.threads)

    def take_pairs(self, most: int) -> int:
        """Choose pairs of fields, up to `most` crosses in total; returns how many were chosen."""
        return self._take(pairs(self.rows, self.existing), most, (0.0, 0.7))

    def take_triples(self, most: int) -> int:
        """Choose the best pairs with a third field, up to `most` crosses in total; returns how many."""
        best = [(each.candidate, each.values) for each in self.chosen[:_BEAM]]
        return self._take(triples(self.rows, self.existing, best), most, (0.7, 1.0))

    def _take(self, candidates: list[Candidate], most: int, part: tuple[float, float]) -> int:
        """Choose candidates round by round, or none if the gain on validation rows is not significant."""
        self.scored += len(candidates)
        last = best = self.margins
        last_chosen = self.chosen
        idle = 0
        for chosen, margins in self._rounds(candidates, most, part):
            gain, error = self._gain(best, margins)
            if gain >= -error:  # not significantly worse, or there are no validation rows
                last, last_chosen = margins, chosen
            best, idle = (margins, 0) if gain > 0 else (best, idle + 1)
            if idle == _PATIENCE and self.cut < len(self.rows):
                break
        gain, error = self._gain(self.margins, last)
        before = len(self.chosen)
        if self.cut == len(self.rows) or gain > _SURE_ERRORS * error:
            self.chosen, self.margins = last_chosen, last
        return len(self.chosen) - before

    def _rounds(
        self, candidates: list[Candidate], most: int, part: tuple[float, float]
    ) -> Iterator[tuple[list[_Chosen], Margins]]:
        """All crosses and the margins of their model, after each round, which chooses a few."""
        chosen, margins = list(self.chosen), self.margins
        expected = len(candidates) + _FINALISTS * (3 + int(2 * log2(most)))
        tried = 0
        while candidates and len(chosen) < most:

            def show(scored: int, tried: int = tried) -> None:
                self.learnt += self.cut
                done = min((tried + scored) / expected, 1.0)
                self.on_progress(self.learnt, part[0] + (part[1] - part[0]) * done)

            scores = self._scorer.scores(margins.values[: self.cut], candidates, show)
            tried += len(candidates)
            best: dict[frozenset[str], tuple[Score, Candidate]] = {}
            scored = zip(scores, candidates, strict=True)
            for each in sorted(scored, key=lambda each: (-each[0].rank, each[1].fields)):
                best.setdefault(fields_of(each[1], self.rows), each)
            ranked = [*best.values()]
            # Few in the first rounds: the first crosses matter most, and others are scored on top of them.
            count = min(max((len(chosen) - len(self.chosen)) // 2, 1), most - len(chosen))
            winners = [each for each in ranked[:count] if each[0].sure]
            if not winners:
                break
            new = [_Chosen(each, cross_values(each.one, each.other), score) for score, each in winners]
            chosen = [*chosen, *new]
            margins = self._with_crosses(chosen)
            yield chosen, margins
            used = {each.fields for _, each in winners}
            candidates = [each for _, each in ranked if each.fields not in used][:_FINALISTS]

    def _with_crosses(self, chosen: Sequence[_Chosen]) -> Margins:
        """The margins of a model with these crosses. More features may need a smaller learning rate."""
        chunk = with_crosses(self.rows.chunk, [each.values for each in chosen])
        alphas = self.base.alpha, self.base.alpha / 2
        return Margins.best(chunk, self.rows.rate, alphas, self.cut, self.threads)

    def _gain(self, before: Margins, after: Margins) -> tuple[float, float]:
        """The gain on validation rows, in nats, and its standard error."""
        gains = (before.losses - after.losses)[self.cut :]
        return float(gains.sum()), _error(gains)


def _error(gains: NDArray[np.float64]) -> float:
    return float(np.sqrt(gains @ gains))
