"""`suggest_crosses`: from raw files and their spec to the crosses that are worth having together.

Method: the beam search of AutoCross (Luo et al., KDD 2019), with its field-wise logistic regression: the
margins of the model so far are frozen, and a candidate learns alone on top of them. Here that is
progressive, so that its gain needs no other rows; and after each round a model learns with the crosses taken
before the rest is scored again, as two may bring the same.

All this happens twice: first without the last fifth of the rows, which then tell how many crosses a model
gains by, and whether it does at all; then with all rows, for so many.
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
    Known,
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
"""The eighths of Criteo's first 48,000 rows gain 4.2 nats per 1,000 rows by 10 crosses that the others
choose, 4.6 by 20 and 4.4 by as many as there are, 22 to 27."""
MOST_ROWS = 1_000_000
_READING = 0.2  # of the time
_ALPHAS = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Of models without crosses; the best is taken. What is left for crosses behind one that learns too slowly is
what its own fields say."""
_HELD_OUT = 0.2
_CONVINCED = 2.0  # standard errors that the gain on the rows held out must be above 0
_PATIENCE = 3  # rounds without a gain on these
_IN_THE_RUNNING = 150  # candidates that are scored again after the first round
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
    """The crosses of the fields of `spec` that lower the log loss of these rows, at most so many.

    Only rows before `stop` are looked at, if it is given; of more than `rows`, so many, spread evenly.
    Features of windows take no part, as they are those of no one row. The outcome depends on neither the
    number of workers nor their speed. Raises DataError and SpecError.
    """
    if datasets := [path for path in inputs if is_dataset(path)]:
        raise DataError(
            f"{datasets[0]}: in a hashed data set, the values of the fields can no longer be told apart; give"
            f" the raw files."
        )
    if "-" in inputs:
        raise DataError(
            "standard input can be read only once, and this takes several passes; write its rows to a file."
        )
    of = candidate_fields(spec)
    files = input_files(inputs)
    fitted = fit(spec.of_fields(spec.fields), files, rows=None if stop is None else [range(stop)])
    source = RawSource(fitted, files, threads=workers)
    values = RawSource(spec_of_values(fitted), files, threads=workers)
    with Threads(workers, "suggest") as threads:
        read = read_rows(
            source, values, rows, stop, threads, lambda done, fraction: on_progress(done, _READING * fraction)
        )
        known = frozenset(frozenset(of.get(part, part) for part in cross.of) for cross in spec.crosses)
        return _suggestion(
            spec,
            read,
            known,
            most,
            threads,
            lambda done, fraction: on_progress(done, _READING + (1 - _READING) * fraction),
        )


def _suggestion(
    spec: FeatureSpec,
    rows: Rows,
    known: Known,
    most: int,
    threads: Threads,
    on_progress: Callable[[int, float], None],
) -> Suggestion:
    """At most so many crosses of the fields of `rows`, none of them `known`.

    `on_progress` gets the rows learnt so far, over all candidates, and about how much is done, 0 to 1.
    """
    cut = len(rows) - int(_HELD_OUT * len(rows))
    trial = _Search(rows, cut, known, threads, lambda rows, part: on_progress(rows, part / 2))
    two, three = trial.take_pairs(most), trial.take_triples(most)
    chosen: list[_Chosen] = []
    if trial.chosen:
        done = trial.learnt
        search = _Search(
            rows, len(rows), known, threads, lambda rows, part: on_progress(done + rows, (1 + part) / 2)
        )
        search.take_pairs(two)
        if three:
            search.take_triples(len(search.chosen) + three)
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
    """A search that learns from the rows before `cut`; those from there on are held out."""

    rows: Rows
    cut: int
    known: Known
    threads: Threads
    on_progress: Callable[[int, float], None]
    chosen: list[_Chosen] = field(default_factory=list, init=False)
    scored: int = field(default=0, init=False)
    """Candidates."""
    learnt: int = field(default=0, init=False)
    """Rows, over all candidates."""
    base: Margins = field(init=False)
    """Of the model without crosses."""
    margins: Margins = field(init=False)
    """Of the model with those chosen."""
    _scorer: Scorer = field(init=False)

    def __post_init__(self) -> None:
        rows, cut = self.rows, self.cut
        self._scorer = Scorer(rows.labels[:cut], rows.weights[:cut], self.threads)
        self.base = self.margins = Margins.best(rows.chunk, rows.rate, _ALPHAS, cut, self.threads)

    def take_pairs(self, most: int) -> int:
        """Take pairs of fields, until there are so many crosses; how many were chosen."""
        return self._take(pairs(self.rows, self.known), most, (0.0, 0.7))

    def take_triples(self, most: int) -> int:
        """Take the best pairs with one field more, until there are so many crosses; how many were chosen."""
        best = [(each.candidate, each.values) for each in self.chosen[:_BEAM]]
        return self._take(triples(self.rows, self.known, best), most, (0.7, 1.0))

    def _take(self, candidates: list[Candidate], most: int, part: tuple[float, float]) -> int:
        """Take candidates round by round, but none unless the rows held out gain by it for sure."""
        self.scored += len(candidates)
        kept = best = self.margins
        kept_chosen = self.chosen
        idle = 0
        for chosen, margins in self._rounds(candidates, most, part):
            more, error = self._gain(best, margins)
            if more >= -error:  # worse by no more than chance, if at all; so, too, where none are held out
                kept, kept_chosen = margins, chosen
            best, idle = (margins, 0) if more > 0 else (best, idle + 1)
            if idle == _PATIENCE and self.cut < len(self.rows):
                break
        gain, error = self._gain(self.margins, kept)
        before = len(self.chosen)
        if self.cut == len(self.rows) or gain > _CONVINCED * error:
            self.chosen, self.margins = kept_chosen, kept
        return len(self.chosen) - before

    def _rounds(
        self, candidates: list[Candidate], most: int, part: tuple[float, float]
    ) -> Iterator[tuple[list[_Chosen], Margins]]:
        """After each round, in which a few are chosen: all crosses, and the margins of their model."""
        chosen, margins = list(self.chosen), self.margins
        expected = len(candidates) + _IN_THE_RUNNING * (3 + int(2 * log2(most)))
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
            # The first ones matter most, and the others are scored on top of them.
            wanted = min(max((len(chosen) - len(self.chosen)) // 2, 1), most - len(chosen))
            picked = [each for each in ranked[:wanted] if each[0].sure]
            if not picked:
                break
            new = [_Chosen(each, cross_values(each.one, each.other), score) for score, each in picked]
            chosen = [*chosen, *new]
            margins = self._with_crosses(chosen)
            yield chosen, margins
            used = {each.fields for _, each in picked}
            candidates = [each for _, each in ranked if each.fields not in used][:_IN_THE_RUNNING]

    def _with_crosses(self, chosen: Sequence[_Chosen]) -> Margins:
        """The margins of a model with these crosses. More features may want a smaller learning rate."""
        chunk = with_crosses(self.rows.chunk, [each.values for each in chosen])
        alphas = self.base.alpha, self.base.alpha / 2
        return Margins.best(chunk, self.rows.rate, alphas, self.cut, self.threads)

    def _gain(self, before: Margins, after: Margins) -> tuple[float, float]:
        """What the rows held out gain, in nats, and the standard error of that."""
        gains = (before.losses - after.losses)[self.cut :]
        return float(gains.sum()), _error(gains)


def _error(gains: NDArray[np.float64]) -> float:
    return float(np.sqrt(gains @ gains))
