"""A job of many workers on a simulated cluster, in virtual time. Prints what came of it, a line of JSON."""
# ruff: noqa: E402  (what is imported from `ctr` takes its locks and clocks from what is installed before)

from __future__ import annotations

import time

import numpy as np
import redis.cluster  # noqa: F401  (before clocks are virtual)

from benchmarks.simulation import virtual_time

real_time = time.perf_counter
virtual_time.install()

import argparse
import gc
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from random import Random, seed
from statistics import median
from types import SimpleNamespace
from typing import Any

from benchmarks.simulation.cluster import Cluster, Process, Terms
from benchmarks.simulation.commands import Integers
from benchmarks.simulation.virtual_time import clock, process_of_thread, start
from ctr.features import Chunk
from ctr.jobs.cost_model import Costs, Workload, chunk_costs, chunk_slots, estimate
from ctr.learn import ALL_ROWS, Learner
from ctr.ps import Filters, JobBoard, RedisSessions, RedisStore, parse_redis_url
from ctr.ps.client import PUSH, SMALL
from ctr.ps.layout import Layout
from ctr.ps.log_kernels import ENTRY_BYTES, decode_entries
from ctr.ps.wire import Keys
from ctr.workers.data_plan import DataPlan
from ctr.workers.ssp_worker import SspWorker
from ctr.workers.timing import Heartbeat, Reports

_LATENCY_S = 0.1e-3
_COMMANDS_PER_STRING = 4.75
"""Of a pull and a push, for a partition of 8 strings: the plan's cost of a string is spread over them."""
_SERVER_ELEMENT_S, _WORKER_ELEMENT_S = 0.2e-6, 1e-6
"""Of a hash or sorted set in a reply: measured with Redis 6.2, and with `ReplyReader`."""
_ONE = 1 << 8
"""1, as `n` of a packed accumulator."""
_COSTS = Costs(request_read_us=1e9)
"""So that workers never read each other's logs: of hundreds, none would."""
_STALENESS, _SHARD_CHUNKS, _BEATS = 2, 4, 5
_VARIES = 0.1
"""The share by which training times differ, as they do on machines."""
_HOT = 8
"""Slots of a string that chunks take turns to add to at once; the others are new."""


class Counting(Learner):
    """Instead of learning, adds 1 to `n` of every slot of a chunk, and takes as long as the plan says."""

    def __init__(self, job: SimulatedJob) -> None:
        super().__init__(0.0)
        self._job = job

    def learn(self, chunk: Chunk, before: Any, *_: object, **__: object) -> Any:
        clock.sleep(self._job.train_s())
        self._job.trained_at.append(clock.now)
        delta = np.zeros_like(before)
        delta[:, 1] = 1
        return delta


class SimulatedJob:
    """Each chunk has two slots in every string of the store, which stand for as many as the plan expects:
    one whose change is added to the state at once, and one whose change goes to a log."""

    def __init__(self, workload: Workload, strings_each: int = 1) -> None:
        """`strings_each`: how many strings of a partition a simulated one stands for, a power of two."""
        self.workload = workload
        terms, slots = _COSTS, chunk_slots(workload, workload.chunk, _COSTS)
        assert not slots.ranged
        self.costs = chunk_costs(workload, workload.chunk, slots, terms)
        simulated_bits = workload.bits - strings_each.bit_length() + 1
        layout = Layout.for_nodes(simulated_bits, workload.nodes)
        assert layout.partitions.count == workload.layout.partitions.count
        self.strings = layout.strings
        strings = self.strings.count
        self._unique_s = slots.unique / strings / 2 * terms.request_slot_us / 1e6
        self.cluster = Cluster(
            workload.nodes,
            Terms(
                latency_s=_LATENCY_S,
                byte_s=8 / (workload.network_gbit * 1e9),
                server_command_s=terms.server_string_us / _COMMANDS_PER_STRING / 1e6,
                server_element_s=_SERVER_ELEMENT_S,
                server_slot_s=terms.server_moved_us / 1e6,
                server_entry_s=terms.server_log_us / 1e6,
                worker_command_s=terms.request_string_us / _COMMANDS_PER_STRING / 1e6,
                worker_element_s=_WORKER_ELEMENT_S,
                worker_slot_s=terms.request_moved_us / 1e6,
                pulled_each=slots.pulled / strings / 2,
                added_each=slots.added / strings,
                logged_each=slots.logged / strings,
                strings_each=strings_each,
            ),
        )
        self.cluster.install()
        self._url = parse_redis_url("redis+cluster://node-0:6379?model=simulated")
        self.plan = DataPlan(rows=workload.examples // workload.chunk, chunk=1, shard_chunks=_SHARD_CHUNKS)
        self._processes = [Process() for _ in range(workload.workers)]
        self._chunk_s = max(estimate(workload, terms).busy_s.values()) * workload.workers / self.plan.rows
        """Of a worker, at the plan's speed; they start within this time."""
        self._left = 0
        self._random = Random(7)
        self.chunks = 0
        self.trained_at: list[float] = []
        """When chunks were trained."""
        self.began = self.ended = 0.0
        self._is_over = False

    def train_s(self) -> float:
        """How long a chunk trains."""
        return self.costs.train_s * self._random.uniform(1 - _VARIES, 1 + _VARIES)

    def run(self) -> None:
        """Let the job run to its end."""
        start(self._coordinate, (), Process())
        clock.run(lambda: self._is_over)

    # As a source of examples, of which each is a chunk.

    bad_rows = None
    blocks_read = 0

    def batches(self, rows: int, first: int, stop: int) -> Iterator[Chunk]:
        for number in range(first, stop):
            clock.sleep(self.costs.read_s)
            strings, half = self.strings, self.strings.size // 2
            slots = np.arange(strings.count, dtype=np.uint64)[:, None] << np.uint64(strings.shift)
            added = np.random.default_rng([0, number % _HOT]).integers(0, half, strings.count)
            logged = np.random.default_rng([1, number]).integers(half, 2 * half - 2, strings.count)
            both = (slots + np.stack([added, logged], axis=1).astype(np.uint64)).reshape(-1)
            both = both.astype(np.uint32) if strings.bits <= 32 else both
            yield Chunk(np.array([0, both.size]), both, np.arange(both.size, dtype=np.uint32))

    def _filter_updates(self, seen: Any, mine: Any, filters: Filters) -> Any:
        process_of_thread().interpreter.use(len(mine) * self._unique_s)
        return np.tile(np.array([PUSH, SMALL], np.uint8), len(mine) // 2)

    def _coordinate(self) -> None:
        workers = self.workload.workers
        with (
            closing(RedisStore(self._url, bits=self.strings.bits, width=2)),
            closing(JobBoard(self._url)) as board,
        ):
            board.create("job", b"", shards=self.plan.shards)
            self.began = clock.now
            for number, process in enumerate(self._processes):
                start(self._work, (number,), process)
            with Heartbeat(board.lease_s / _BEATS, board.heartbeat_coordinator):
                while self._left < workers:
                    clock.sleep(0.25)
                    board.look(shards=False)
            assert board.look().finished == self.plan.shards
        self._is_over = True

    def _work(self, number: int) -> None:
        job: Any = SimpleNamespace(
            learner=lambda: Counting(self),
            plan=lambda: self.plan,
            sampling=ALL_ROWS,
            optimizer_in=lambda pass_: None,
            bound=_STALENESS,
        )
        source: Any = self
        clock.sleep(self._random.uniform(0, self._chunk_s))
        with (
            closing(JobBoard(self._url)) as board,
            closing(RedisStore(self._url, bits=self.strings.bits, width=2, join=True)) as store,
        ):
            sessions = RedisSessions(
                store,
                "job",
                filters=Filters(defer=0.01),
                staleness=_STALENESS,
                filter_updates=self._filter_updates,
            )
            worker = SspWorker(board, sessions, source, job)
            me = board.leases.register(f"host-{number}")
            reports = Reports(lambda: bytes(2000), lambda report: board.report(f"result:{number}", report))
            with Heartbeat(
                board.lease_s / _BEATS, lambda: board.leases.heartbeat(me, (f"life:{me}", bytes(150)))
            ) as heart:
                is_over = worker.run(me, lambda: False, reports)
                assert is_over
                assert heart.failure is None, heart.failure
            self.ended = max(self.ended, clock.now)
            board.leases.expire(me)
        self.chunks += worker.examples
        self._left += 1

    def counted(self) -> int:
        """How often slots were counted, in states and in logs."""
        total = 0
        for node in self.cluster.nodes:
            for key, value in node.commands.keys.items():
                if isinstance(value, Integers):
                    total += sum(value.values.values())
                elif b":meta}" not in key and key.rpartition(b":")[2][:1] == b"l":
                    entries = len(value) // ENTRY_BYTES
                    offsets, increments = np.empty(entries, np.uint32), np.empty(entries, np.int64)
                    decode_entries(np.frombuffer(value, np.uint8), offsets, increments)
                    total += int(increments.sum())
        return total // _ONE

    def outcome(self) -> dict[str, Any]:
        """The figures, beside those of the plan."""
        w, nodes, seconds = self.workload, self.cluster.nodes, self.ended - self.began
        plan, times = estimate(w, _COSTS), sorted(self.trained_at)
        first, last = len(times) // 4, 3 * len(times) // 4
        conflicts: Counter[bytes] = sum((node.conflicts for node in nodes), Counter())
        board = Keys(str(self._url.model)).board
        of_claims, of_ends = conflicts.pop(board.finished, 0), conflicts.pop(board.job, 0)
        busy = [node.processor.busy_s / clock.now for node in nodes]
        of_board = next(i for i, node in enumerate(nodes) if board.job in node.commands.keys)
        return {
            "workers": w.workers,
            "nodes": w.nodes,
            "bits": w.bits,
            "chunks": self.chunks,
            "expected_chunks": self.plan.rows,
            "counted": self.counted(),
            "expected": self.plan.rows * self.strings.count * 2,
            "seconds": seconds,
            "planned_seconds": w.examples / plan.examples_per_second,
            "steady": (last - first) * w.chunk / (times[last] - times[first]),
            "planned": w.examples / max(plan.busy_s.values()),
            "bound": plan.bound,
            "requests_per_chunk": sum(node.requests for node in nodes) / self.chunks,
            "connections": max(node.most_connections for node in nodes),
            "connections_each": median(node.most_connections for node in nodes) / w.workers,
            "conflicts_per_chunk": sum(conflicts.values()) / self.chunks,
            "claims_again": of_claims / self.plan.shards,
            "ends_again": of_ends / self.plan.shards,
            "longest_queue": max(node.longest_queue for node in nodes),
            "board_busy": busy[of_board],
            "busiest_other": max((share for i, share in enumerate(busy) if i != of_board), default=0.0),
        }


def main() -> None:
    """Simulate one job."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("workers", "nodes", "bits", "chunks"):
        parser.add_argument(name, type=int)
    parser.add_argument("strings_each", type=int, nargs="?", default=1)
    o = parser.parse_args()
    seed(7)  # of pauses between tries
    gc.disable()  # a large heap, in which little is ever free
    began = real_time()
    chunk, examples = 1 << 20, o.chunks * o.workers << 20
    # As of 10**11 examples with 4 * 10**9 features.
    workload = Workload(
        features=examples // 25, examples=examples, workers=o.workers, nodes=o.nodes, bits=o.bits, chunk=chunk
    )
    job = SimulatedJob(workload, o.strings_each)
    job.run()
    print(json.dumps(job.outcome() | {"real_seconds": real_time() - began}))


if __name__ == "__main__":
    main()
