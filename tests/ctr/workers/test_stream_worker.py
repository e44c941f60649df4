"""`StreamWorker`: what it trains with after another worker has taken over a lane."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import count
from pathlib import Path

import numpy as np

from ctr.features.spec import parse_spec
from ctr.optimizers import Float32
from ctr.ps import Filters, JobBoard, RedisSessions, RedisStore, parse_redis_url
from ctr.ps.client.sessions import SendPacked
from ctr.ps.redis import PackedPush
from ctr.stream import LANES, ExampleStream, StreamSource
from ctr.workers.description import JobDescription
from ctr.workers.stream_worker import StreamWorker
from ctr.workers.timing import Reports
from tests.ctr.distributed_jobs import describe
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis

SPEC = parse_spec(
    "{version: 1, source: {format: jsonl}, label: y, bits: 8, fields: [{name: a, type: category}]}", "test"
)
CLICKS = [b'{"y": 1, "a": "x"}'] * 40
OTHERS = [b'{"y": 0, "a": "x"}', b'{"y": 1, "a": "z"}'] * 20
_names = count()


def superseding(push: SendPacked, store: RedisStore) -> SendPacked:
    """Pushes; but another worker takes over lane 0 before its first push."""
    numbers = count()

    def send(packed: PackedPush, partitions: object) -> list[int]:
        if next(numbers) == 0:
            store.take_over("job", 0)
        return push(packed, partitions)  # type: ignore[arg-type]

    return send


def trained(job: JobDescription, url: str, chunks: Sequence[list[bytes]], *, disturbed: bool) -> Float32:
    """The state in the store after training a stream whose lanes have a chunk each."""
    name = f"lanes-{next(_names)}"
    parsed = parse_redis_url(f"{url}?model={name}")
    with (
        closing(ExampleStream(f"{url}?stream={name}")) as stream,
        closing(RedisStore(parsed, bits=SPEC.bits, width=2)) as store,
        closing(JobBoard(parsed)) as board,
    ):
        for number, rows in enumerate(chunks):
            assert stream.append(number, rows, {})
        board.create("job", b"", shards=job.plan().shards)
        push = superseding(store.push_packed, store) if disturbed else None
        sessions = RedisSessions(store, "job", filters=job.filters, push=push)
        worker = StreamWorker(board, sessions, StreamSource(stream, SPEC, "fail"), job)
        rows = sum(map(len, chunks))
        reports = Reports(lambda: b"", lambda _: None)
        assert worker.run(board.leases.register("here"), lambda: worker.examples >= rows, reports)
        state = store.pull(np.arange(1 << SPEC.bits, dtype=np.uint32))
        store.drop()
        return state


def test_pulls_do_not_include_a_push_that_was_superseded(job_data: Path, redis_url: str) -> None:
    """The chunk of the other lane is trained as if the refused push had never been made."""
    job = describe(
        job_data,
        stream=redis_url,
        stream_from=(0,) * LANES,
        consistency="asp",
        filters=Filters(cache=True, presence=True),
    ).model_copy(update={"spec": SPEC.to_yaml()})
    undisturbed = trained(job, redis_url, [OTHERS, CLICKS], disturbed=False)
    disturbed = trained(job, redis_url, [CLICKS, OTHERS], disturbed=True)
    np.testing.assert_allclose(disturbed, undisturbed, rtol=1e-3)  # stochastic rounding depends on the lane
