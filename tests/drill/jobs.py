"""`Jobs`: the jobs of the rounds, and what they come to when nothing disturbs them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from ctr.features import BLOCK_ROWS, RawSource, load_spec, write_dataset
from ctr.optimizers.ftrl import Ftrl
from ctr.ps.servers import EmbeddedRedis
from ctr.synth import write_click_log
from ctr.workers.description import JobDescription, filters_for
from tests.ctr.distributed_jobs import ADDITIVE, State, describe, in_memory, undisturbed
from tests.drill.rounds import Round

_ROWS = 6_050  # the last chunk of a pass is smaller
_CHUNK = 100
_PASSES = 3


class Jobs:
    """Data sets in `folder`, made when they are first needed, and a Redis; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened = ExitStack()
        self._redis: EmbeddedRedis | None = None
        self._sums: dict[bytes, State] = {}

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

    def expected(self, round_: Round, job: JobDescription) -> State | None:
        """The state that the job comes to; None when that depends on who is faster."""
        if job.ranks:
            if self._redis is None:
                self._redis = self._opened.enter_context(EmbeddedRedis())
            return undisturbed(job, self._redis.url)[0]
        if not round_.additive:
            return None
        key = job.model_copy(update={"workers": 1, "shard_chunks": 1, "consistency": "ssp"}).to_bytes()
        if key not in self._sums:
            self._sums[key] = in_memory(job)[0]
        return self._sums[key]

    def _data(self, bits: int) -> Path:
        path = self._folder / f"data-{bits}"
        if not path.exists():
            log = self._folder / "clicks.tsv"
            spec = load_spec("criteo").model_copy(update={"bits": bits})
            write_click_log(log, _ROWS, seed=1)
            write_dataset(RawSource(spec, [log]).batches(BLOCK_ROWS), spec, path)
            log.unlink()
        return path
