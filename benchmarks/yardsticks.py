"""`measure_yardsticks`: how much longer work takes here, and now, than the cost model takes it to."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import mean
from threading import get_native_id
from time import process_time, thread_time

from ctr.defaults import SAFE_ADDING, STALENESS
from ctr.features import Chunk, open_source
from ctr.features.batches import localize
from ctr.jobs.cost_model import ChunkSlots, Costs, Workload, chunk_costs
from ctr.learn import Learner
from ctr.optimizers import choose_optimizer
from ctr.ps import DEFAULT_FILTERS, FilterCounts, Pulled, RedisSessions, RedisStore, parse_redis_url
from ctr.ps.servers import EmbeddedRedis

CHUNKS = 8
"""At most: as many as a job of one worker has at least. What only the first takes counts as much."""


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
    """Of this machine at this moment, for chunks of some data, of some size, in some processes at once.

    They differ: what fits no cache takes memory's speed, the rest the processor's.
    """

    longer: Spent
    """How many times as long as by `Costs` work takes."""
    queued: float
    """How long a thread that trains waits for a core, over how long it works: beside what the model takes it
    to, as it tells more of others than of the job where they are at work."""

    def costs(self, others: float) -> Costs:
        """Those of the cost model, on this machine, where others have this share of all cores."""
        longer = self.longer
        slower = Costs().slower(training=longer.training, requests=longer.requests, servers=longer.servers)
        return replace(slower, cores_busy=slower.cores_busy * (1 - others))

    @staticmethod
    def between(*some: Yardsticks) -> Yardsticks:
        """The means of several."""
        return Yardsticks(
            longer=Spent.mean(*(each.longer for each in some)),
            queued=mean(each.queued for each in some),
        )


def measure_yardsticks(pool: ProcessPoolExecutor, at_once: int, data: Path, chunk: int) -> Yardsticks:
    """Measure in so many processes at the same time, which share cores and memory as workers of a job do."""
    return Yardsticks.between(*pool.map(_measure, [data] * at_once, [chunk] * at_once))


def _measure(data: Path, chunk: int) -> Yardsticks:
    """Read, pull, train and push some chunks, as a worker does, with a Redis that nobody else uses."""
    source = open_source([data], None)
    with (
        EmbeddedRedis() as server,  # a new one: its memory comes from the kernel, as in a job
        closing(RedisStore(parse_redis_url(server.url), bits=source.spec.bits, width=2)) as store,
    ):
        store.pushes.make_strings()
        count = min(CHUNKS, -(-source.count_rows() // chunk))
        longer, queued = _play(server, store, map(localize, islice(source.batches(chunk), count)), count)
    return Yardsticks(longer, queued)


def _server_s(server: EmbeddedRedis) -> float:
    with server.servers[0].connect() as client:
        facts = client.info("cpu")
    return float(facts["used_cpu_user"] + facts["used_cpu_sys"])


def _waited_s() -> float:
    """How long this thread was able to work, and had no core."""
    return int(Path(f"/proc/self/task/{get_native_id()}/schedstat").read_text().split()[1]) / 1e9


def _play(
    server: EmbeddedRedis, store: RedisStore, chunks: Iterator[Chunk], count: int
) -> tuple[Spent, float]:
    """How many times as long as by `Costs` chunks take, while the next is pulled and the last one pushed.

    And how long training waits for a core, over how long it takes.
    """
    optimizer, learner, reading = choose_optimizer({}), Learner(SAFE_ADDING), [0.0]
    filters = {"filters": DEFAULT_FILTERS, "staleness": STALENESS, "filter_updates": optimizer.filter_updates}
    worker = RedisSessions(store, "yardstick", **filters)
    session = worker.begin(0)
    with ThreadPoolExecutor(1) as puller, ThreadPoolExecutor(1) as sender:

        def pull(number: int) -> tuple[Chunk, Pulled]:
            began = thread_time()
            chunk = next(chunks)
            reading[0] += thread_time() - began
            return chunk, session.pull(chunk.slots, number, number)

        training, rows, server_s, worker_s = 0.0, 0, _server_s(server), process_time()
        waited_s = _waited_s()
        coming = puller.submit(pull, 0)
        for number in range(count):
            chunk, pulled = coming.result()
            if number + 1 < count:
                coming = puller.submit(pull, number + 1)
            began = thread_time()
            state = session.wait(pulled)
            delta = learner.learn(chunk, state, optimizer, number=number, first_pass=True, peers=1)
            sender.submit(session.send, session.push(pulled, delta, number))
            training += thread_time() - began
            rows += len(chunk)
        queued = (_waited_s() - waited_s) / training
        worker.flush()
        session.close()
        training += reading[0]
        requests = process_time() - worker_s - training
        spent = Spent(training, requests, _server_s(server) - server_s)
        return spent.over(_expected(store.bits, rows, count, pulled.receipt.dense, worker.counts)), queued


def _expected(bits: int, rows: int, chunks: int, ranged: bool, counts: FilterCounts) -> Spent:
    """What all chunks take by the cost model, for the slots that were counted."""
    found = ChunkSlots(
        unique=counts.wanted / chunks,
        ranged=ranged,
        pulled=counts.pulled / chunks,
        added=counts.pushed / chunks,
        logged=(counts.deferred_small + counts.logged_new) / chunks,
    )
    job = Workload(features=counts.wanted, examples=rows, workers=1, nodes=1, bits=bits, cores=1)
    one = chunk_costs(job, rows // chunks, found, Costs())
    return Spent(chunks * (one.read_s + one.train_s), chunks * one.requests_s, chunks * one.store_s)
