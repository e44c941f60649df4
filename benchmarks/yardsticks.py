"""`measure_yardsticks`: how much longer work takes here, and now, than the cost model takes it to."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from time import process_time, thread_time

from ctr.cost_model import ChunkSlots, Costs, Workload, chunk_costs
from ctr.defaults import SAFE_ADDING, STALENESS
from ctr.learn import Learner
from ctr.optimizers import choose_optimizer
from features import Chunk, open_source
from features.batches import localize
from ps import DEFAULT_FILTERS, FilterCounts, Pulled, RedisStore, WorkerStore, parse_redis_url
from ps.servers import EmbeddedRedis

YARDSTICK_BITS = {True: 22, False: 24}
"""Of chunks whose slots travel as ranges, and of those whose slots travel one by one."""
CHUNK = {True: 40_000, False: 262_144}
"""Examples, at most: about as many as a job's have, as larger chunks miss the processor's caches more."""
CHUNKS = 8
"""As many as a job of one worker has at least: what only the first takes counts as much."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Processor time in seconds."""

    training: float
    """A worker's, reading included."""
    requests: float
    """A worker's, pulling and pushing."""
    servers: float

    def over(self, some: Spent) -> Spent:
        """So many times as long as the other."""
        return Spent(
            self.training / some.training, self.requests / some.requests, self.servers / some.servers
        )

    @staticmethod
    def mean(*some: Spent) -> Spent:
        """The means of several."""
        return Spent(
            mean(each.training for each in some),
            mean(each.requests for each in some),
            mean(each.servers for each in some),
        )


@dataclass(frozen=True, slots=True)
class Yardsticks:
    """Of this machine at this moment."""

    longer: dict[bool, Spent]
    """How many times as long as by `Costs` work takes, where slots travel as ranges and where not.

    They differ: ranges take memory's speed, slots one by one the processor's.
    """
    strings_ns: float
    """A Redis's time for each byte of a new model's strings, which the kernel's pages decide."""

    def costs(self, *, ranged: bool) -> Costs:
        """Those of the cost model, on this machine."""
        longer = self.longer[ranged]
        slower = Costs().slower(training=longer.training, requests=longer.requests, servers=longer.servers)
        return replace(slower, allocate_ns=self.strings_ns)

    @staticmethod
    def between(*some: Yardsticks) -> Yardsticks:
        """The means of several."""
        return Yardsticks(
            longer={ranged: Spent.mean(*(each.longer[ranged] for each in some)) for ranged in YARDSTICK_BITS},
            strings_ns=mean(each.strings_ns for each in some),
        )


def measure_yardsticks(pool: ProcessPoolExecutor, at_once: int, data: dict[int, Path]) -> Yardsticks:
    """Measure in so many processes at the same time, which share cores and memory as those of a job do.

    `data` is the same rows hashed to each of `YARDSTICK_BITS`.
    """
    return Yardsticks.between(*pool.map(_measure, [data] * at_once))


def _measure(data: dict[int, Path]) -> Yardsticks:
    """Read, pull, train and push some chunks, as a worker does, with a Redis that nobody else uses."""
    longer, strings_s, strings_bytes = {}, 0.0, 0
    for ranged, bits in YARDSTICK_BITS.items():
        with (
            EmbeddedRedis() as server,  # a new one: its memory comes from the kernel, as in a job
            closing(RedisStore(parse_redis_url(server.url), bits=bits, width=2)) as store,
        ):
            began = _server_s(server)
            store.make_strings()
            strings_s += _server_s(server) - began
            strings_bytes += 8 << bits
            longer[ranged] = _play(server, store, _chunks(data[bits], CHUNK[ranged]))
    return Yardsticks(longer, 1e9 * strings_s / strings_bytes)


def _server_s(server: EmbeddedRedis) -> float:
    with server.servers[0].connect() as client:
        facts = client.info("cpu")
    return float(facts["used_cpu_user"] + facts["used_cpu_sys"])


def _chunks(data: Path, most: int) -> Iterator[Chunk]:
    source = open_source([data], None)
    rows = min(most, source.count_rows() // CHUNKS)
    return map(localize, source.batches(rows))


def _play(server: EmbeddedRedis, store: RedisStore, chunks: Iterator[Chunk]) -> Spent:
    """How many times as long as by `Costs` chunks take, while the next is pulled and the last one pushed."""
    optimizer, learner, reading = choose_optimizer({}), Learner(SAFE_ADDING), [0.0]
    filters = {"filters": DEFAULT_FILTERS, "staleness": STALENESS, "filter_updates": optimizer.filter_updates}
    with closing(WorkerStore(store, "yardstick", **filters)) as worker, ThreadPoolExecutor(1) as puller:

        def pull(number: int) -> tuple[Chunk, Pulled]:
            began = thread_time()
            chunk = next(chunks)
            reading[0] += thread_time() - began
            return chunk, worker.pull(chunk.slots, 0, number, number)

        worker.begin(0)
        training, rows, server_s, worker_s = 0.0, 0, _server_s(server), process_time()
        coming = puller.submit(pull, 0)
        for number in range(CHUNKS):
            chunk, pulled = coming.result()
            if number + 1 < CHUNKS:
                coming = puller.submit(pull, number + 1)
            began = thread_time()
            state = worker.complete(pulled)
            delta = learner.learn(chunk, state, optimizer, number=number, first_pass=True, peers=1)
            worker.push(pulled, state, delta, number, last=number + 1 == CHUNKS)
            training += thread_time() - began
            rows += len(chunk)
        worker.flush()
        training += reading[0]
        requests = process_time() - worker_s - training
        spent = Spent(training, requests, _server_s(server) - server_s)
        return spent.over(_expected(store.bits, rows, pulled.dense, worker.counts))


def _expected(bits: int, rows: int, ranged: bool, counts: FilterCounts) -> Spent:
    """What all chunks take by the cost model, for the slots that were counted."""
    found = ChunkSlots(
        unique=counts.wanted / CHUNKS,
        ranged=ranged,
        cached=counts.from_cache / CHUNKS,
        absent=counts.absent / CHUNKS,
        pulled=counts.pulled / CHUNKS,
        added=counts.pushed / CHUNKS,
        logged=(counts.deferred_small + counts.named) / CHUNKS,
    )
    job = Workload(features=counts.wanted, examples=rows, workers=1, nodes=1, bits=bits, cores=1)
    one = chunk_costs(job, rows // CHUNKS, found, Costs())
    return Spent(CHUNKS * (one.read_s + one.train_s), CHUNKS * one.requests_s, CHUNKS * one.store_s)
