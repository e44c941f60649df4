"""`Jobs`: the jobs of the rounds, and what they come to when nothing disturbs them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from ctr.features import BLOCK_ROWS, RawSource, load_spec, write_dataset
from ctr.model import LinearModel, evaluate
from ctr.optimizers.ftrl import Ftrl
from ctr.synth import write_click_log
from ctr.workers.description import JobDescription, filters_for
from tests.ctr.distributed_jobs import (
    ADDITIVE,
    State,
    describe,
    in_memory,
    same,
    same_sums,
    source_of,
    undisturbed,
)
from tests.drill.evidence import Compare
from tests.drill.rounds import Round
from tests.ps.breakable_redis import BreakableRedis

_ROWS = 6_050  # the last chunk of a pass is smaller
_CHUNK = 100
_PASSES = 3
_TOLERANCE = 0.02
"""By how much of it the log loss may be worse: several workers never train twice alike."""


class Jobs:
    """Data sets in `folder`, of `rows` rows, made when first needed, and a Redis; a context manager."""

    def __init__(self, folder: Path, rows: int = _ROWS) -> None:
        self._folder = folder
        self._rows = rows
        self._opened = ExitStack()
        self._redis: BreakableRedis | None = None
        self._states: dict[bytes, State] = {}
        """What jobs come to in memory."""

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def describe(self, round_: Round) -> JobDescription:
        """The job of a round: small chunks, and so few slots that their logs are soon long enough to fold."""
        return describe(
            self._data(round_.bits),
            filters=filters_for(round_.consistency, {}),
            ftrl=ADDITIVE if round_.additive else Ftrl(),
            consistency=round_.consistency,
            chunk=_CHUNK,
            shard_chunks=round_.shard_chunks,
            passes=_PASSES,
            workers=round_.workers,
        )

    def compare(self, round_: Round, job: JobDescription) -> Compare:
        """What tells whether the job came to the right state."""
        if job.ranks:
            if self._redis is None:
                self._redis = self._opened.enter_context(BreakableRedis())
            right = undisturbed(job, self._redis.url)[0]
            return lambda state: (
                None if same(state, right) else "the weights are not those of the undisturbed job"
            )
        if round_.additive:
            sums = self._in_memory(job)
            return lambda state: (
                None if same_sums(state, sums) else "the sums are not those of the undisturbed job"
            )
        if round_.in_turn:
            return self._compare_logloss(job)
        return lambda _: None  # the state depends on which worker is faster

    def _compare_logloss(self, job: JobDescription) -> Compare:
        most = (1 + _TOLERANCE) * _logloss(job, self._in_memory(job))

        def compare(state: State) -> str | None:
            reached = _logloss(job, state)
            return None if reached <= most else f"the log loss is {reached:.5f}, allowed: {most:.5f}"

        return compare

    def _in_memory(self, job: JobDescription) -> State:
        key = job.model_copy(update={"workers": 1, "shard_chunks": 1, "consistency": "ssp"}).to_bytes()
        if key not in self._states:
            self._states[key] = in_memory(job)[0]
        return self._states[key]

    def _data(self, bits: int) -> Path:
        path = self._folder / f"data-{bits}"
        if not path.exists():
            log = self._folder / "clicks.tsv"
            spec = load_spec("criteo").model_copy(update={"bits": bits})
            write_click_log(log, self._rows, seed=1)
            write_dataset(RawSource(spec, [log]).batches(BLOCK_ROWS), spec, path)
            log.unlink()
        return path


def _logloss(job: JobDescription, state: State) -> float:
    """Of the model, on the rows that it was trained on."""
    model = LinearModel.of_weights(state[0], job.optimizer_in(job.passes - 1).weights(state[1]))
    return evaluate(model, source_of(job)).summary().logloss
