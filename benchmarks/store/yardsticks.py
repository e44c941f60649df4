"""`measure_yardsticks`: how much longer work takes here, and now, than the cost model takes it to."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import partial
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

CHUNKS = 24
"""At most, of each process: about as many as a job has, so that what only the first take counts as much."""


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
        costs = slower(self.longer.training, self.longer.requests, self.longer.servers)
        return replace(costs, cores_busy=costs.cores_busy * (1 - others))

    @staticmethod
    def between(*some: Yardsticks) -> Yardsticks:
        """The means of several."""
        return Yardsticks(
            longer=Spent.mean(*(each.longer for each in some)),
            queued=mean(each.queued for each in some),
        )


def slower(training: float, requests: float, servers: float) -> Costs:
    """The costs where reading and training, workers' requests, and servers take so many times as long."""
    costs, times = Costs(), {"train": training, "request": requests, "server": servers}
    timed = [each.name for each in fields(costs) if each.metadata["unit"].startswith(("us ", "ns "))]
    return replace(costs, **{name: getattr(costs, name) * times[name.partition("_")[0]] for name in timed})


def measure_yardsticks(
    pool: ProcessPoolExecutor, at_once: int, nodes: int, data: Path, chunk: int
) -> Yardsticks:
    """Measure in so many processes at the same time, which share cores and servers as workers of a job do."""
    source = open_source([data], None)
    count = min(CHUNKS, -(-source.count_rows() // (chunk * at_once)))
    with (
        EmbeddedRedis(nodes) as servers,  # new ones: their memory comes from the kernel, as in a job
        closing(RedisStore(parse_redis_url(servers.url), bits=source.spec.bits, width=2)) as store,
    ):
        store.pushes.make_strings()
        servers_s = _servers_s(servers)
        play = partial(_play, servers.url, data, chunk, count, at_once)
        played = list(pool.map(play, range(at_once)))
        servers_s = _servers_s(servers) - servers_s
    spent = replace(Spent.mean(*(each.spent for each in played)), servers=servers_s / at_once)
    longer = spent.over(Spent.mean(*(each.expected for each in played)))
    return Yardsticks(longer, mean(each.queued for each in played))


def _servers_s(servers: EmbeddedRedis) -> float:
    seconds = 0.0
    for server in servers.servers:
        with server.connect() as client:
            facts = client.info("cpu")
        seconds += facts["used_cpu_user"] + facts["used_cpu_sys"]
    return seconds


def _waited_s() -> float:
    """How long this thread was able to work, and had no core."""
    return int(Path(f"/proc/self/task/{get_native_id()}/schedstat").read_text().split()[1]) / 1e9


@dataclass(frozen=True, slots=True)
class _Played:
    """What one process measured."""

    spent: Spent
    """Without servers, of which nobody knows for whom they work."""
    expected: Spent
    """The same by `Costs`, servers included."""
    queued: float


def _play(url: str, data: Path, chunk: int, count: int, at_once: int, number: int) -> _Played:
    """Read, pull, train and push `count` chunks of its own, as worker `number` of so many does."""
    source = open_source([data], None)
    chunks = map(localize, islice(source.batches(chunk, number * count * chunk), count))
    with closing(RedisStore(parse_redis_url(url), bits=source.spec.bits, width=2, join=True)) as store:
        return _play_chunks(store, chunks, at_once, number)


def _play_chunks(store: RedisStore, chunks: Iterator[Chunk], at_once: int, number: int) -> _Played:
    """The next chunk is pulled and the last one pushed while one is trained."""
    optimizer, learner, reading = choose_optimizer({}), Learner(SAFE_ADDING), [0.0]
    filters = {"filters": DEFAULT_FILTERS, "staleness": STALENESS, "filter_updates": optimizer.filter_updates}
    worker = RedisSessions(store, "yardstick", **filters)
    session = worker.begin(number)
    with ThreadPoolExecutor(1) as puller, ThreadPoolExecutor(1) as sender:

        def pull(clock: int) -> tuple[Chunk, Pulled] | None:
            began = thread_time()
            chunk = next(chunks, None)
            reading[0] += thread_time() - began
            return chunk and (chunk, session.pull(chunk.slots, clock, clock))

        training, rows, clock, worker_s, waited_s = 0.0, 0, 0, process_time(), _waited_s()
        coming = puller.submit(pull, clock)
        while (arrived := coming.result()) is not None:
            chunk, pulled = arrived
            coming = puller.submit(pull, clock + 1)
            began = thread_time()
            state = session.wait(pulled)
            delta = learner.learn(chunk, state, optimizer, number=clock, first_pass=True, peers=at_once)
            sender.submit(session.send, session.push(pulled, delta, clock))
            training += thread_time() - began
            rows, clock = rows + len(chunk), clock + 1
        queued = (_waited_s() - waited_s) / training
    worker.flush()
    session.close()
    training += reading[0]
    requests = process_time() - worker_s - training
    expected = _expected(store.bits, rows, clock, pulled.receipt.dense, worker.counts, at_once)
    return _Played(Spent(training, requests, 0.0), expected, queued)


def _expected(bits: int, rows: int, chunks: int, ranged: bool, counts: FilterCounts, workers: int) -> Spent:
    """What the chunks of one worker take by the cost model, for the slots that were counted."""
    slots = ChunkSlots(
        unique=counts.wanted / chunks,
        ranged=ranged,
        pulled=counts.pulled / chunks,
        added=counts.pushed / chunks,
        logged=(counts.deferred_small + counts.logged_new) / chunks,
    )
    job = Workload(
        features=counts.wanted * workers,
        examples=rows * workers,
        workers=workers,
        nodes=1,
        bits=bits,
        cores=1,
    )
    one = chunk_costs(job, rows // chunks, slots, Costs())
    return Spent(chunks * (one.read_s + one.train_s), chunks * one.requests_s, chunks * one.store_s)
