"""Reads the chunks that a worker trains; `RankReaders`: reads ahead for the ranks of a BSP worker."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from ctr.features import Batch, Chunk, ExampleSource
from ctr.features.batches import localize
from ctr.features.threads import Prefetch
from ctr.learn import Timings
from ctr.workers.description import JobDescription

if TYPE_CHECKING:
    from ctr.features.inputs import InputFile


def read_chunks(examples: Iterator[Batch | Chunk | None], timings: Timings) -> Iterator[Chunk | None]:
    """Read examples and de-duplicate their slots, adding the time to `timings`.

    None stands for a chunk whose rows are all bad.
    """
    while True:
        started = perf_counter()
        try:
            batch = next(examples)
        except StopIteration:
            return
        finally:
            read = perf_counter()
            timings.read += read - started
        chunk = None if batch is None else localize(batch)
        timings.unique += perf_counter() - read
        yield chunk


class RankReaders:
    """A reader and a source for each rank."""

    def __init__(
        self, job: JobDescription, inputs: Sequence[str | Path | InputFile], timings: Timings
    ) -> None:
        """`inputs`: the inputs of the worker's source. Reading time is added to `timings`."""
        self._job = job
        self._plan = job.plan()
        self._timings = timings
        self._sources: dict[int, ExampleSource] = {}
        self._inputs = inputs
        self._readers: dict[int, _Reader] = {}

    @property
    def sources(self) -> list[ExampleSource]:
        """The sources that were read."""
        return list(self._sources.values())

    def chunk(self, rank: int, round_: int) -> Chunk | None:
        """The chunk of a rank and round; see `read_chunks`."""
        reader = self._readers.get(rank)
        if reader is None or reader.round != round_:
            if reader is not None:
                reader.close()
            if rank not in self._sources:
                self._sources[rank] = self._job.open_source(self._inputs)
            examples = self._examples(rank, self._plan.place(rank, round_))
            reader = self._readers[rank] = _Reader(read_chunks(examples, self._timings), round_)
        return reader.next()

    def keep(self, ranks: Collection[int]) -> None:
        """Close the readers of all other ranks."""
        for rank in self._readers.keys() - set(ranks):
            self._readers.pop(rank).close()

    def _examples(self, rank: int, first: int) -> Iterator[Batch | Chunk | None]:
        """The examples of a rank's data shards, starting with this one."""
        source, plan = self._sources[rank], self._plan
        for shard in range(first, plan.shards, plan.ranks):
            yield next(self._job.sampling.batches(source, plan.chunk, *plan.rows_of(shard)), None)


class _Reader:
    """Reads a rank's chunks ahead."""

    def __init__(self, chunks: Iterator[Chunk | None], round_: int) -> None:
        self.round = round_
        """The round of the next chunk."""
        self._prefetch = Prefetch(([chunk] for chunk in chunks), 1)
        self._chunks = self._prefetch.__enter__()

    def next(self) -> Chunk | None:
        self.round += 1
        (chunk,) = next(self._chunks)
        return chunk

    def close(self) -> None:
        self._prefetch.__exit__()
