"""A model with windows, from served rows back to its weights: trained with the features that were served."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count, pairwise
from pathlib import Path

import httpx
import orjson
import pytest

from ctr.errors import DataError
from ctr.features import Batch, Transform
from ctr.features.spec import SERVED
from ctr.features.windows import NotingHistory, Windows
from ctr.jobs import run_train_job
from ctr.model import load_model, load_state
from ctr.ps import JobBoard, parse_redis_url
from ctr.settings import TrainJob
from ctr.stream import ExampleStream, JoinSettings, StreamSource, join_stream
from tests.api.operations.test_live_serving import serving
from tests.api.test_events import SPEC, START, build, write_log
from tests.ctr.distributed_jobs import Command
from tests.ps.redis_servers import eventually, needs_redis

pytestmark = needs_redis

_names = count()


@pytest.fixture
def stream(redis_url: str) -> Iterator[ExampleStream]:
    with closing(ExampleStream(f"{redis_url}?stream=windows-{next(_names)}")) as opened:
        yield opened


def slots_of(batch: Batch) -> list[list[int]]:
    return [batch.slots[a:b].tolist() for a, b in pairwise(batch.indptr.tolist())]


def test_rows_are_trained_with_the_features_that_they_were_served_with(
    redis_url: str, stream: ExampleStream, tmp_path: Path
) -> None:
    write_log(tmp_path / "1.csv", 0, 1_000, seed=1)
    first = build(tmp_path / "1.csv", Windows(SPEC), tmp_path / "first")
    before, after = tmp_path / "before", tmp_path / "after"
    run_train_job(TrainJob(inputs=[first], spec=None, model=before, chunk=100))
    store, events = f"{redis_url}?model=windowed", f"{redis_url}?stream=served-windows"
    joined = f"{redis_url}?stream={stream.url.stream}"
    served: list[list[int]] = []
    clicks: list[int] = []
    train = Command("train", "--stream", joined, "--store", store, "--warm-start", before, "--model", after)
    serve = "--store", store, "--windows", f"{redis_url}?model=counts", "--feedback-log", events
    try:
        with closing(JobBoard(parse_redis_url(store))) as board:
            eventually(lambda: board.job() is not None or train.popen.poll() is not None, 60.0)
        with (
            serving(*serve, "--log-impressions=1") as url,
            httpx.Client(base_url=url, verify=False) as client,
        ):

            def ask(path: str, **request: object) -> dict[str, list[list[dict[str, int]]]]:
                return client.post(path, json=request).raise_for_status().json()

            for row in write_log(tmp_path / "2.csv", 2_500, 60, seed=2):
                clicked = row.pop("click")
                answer = ask("/v1/predict?include=contributions", rows=[row])
                served.append([feature["slot"] for feature in answer["contributions"][0]])
                ask("/v1/events/impressions", rows=[row])
                if clicked:
                    clicks.append(len(served) - 1)
                    ask("/v1/feedback", clicks=answer["ids"])
        join_stream(events, joined, JoinSettings(60, grace_s=1, chunk_rows=16), follow=False)
        chunks = stream.last()[0]
        eventually(lambda: sum(stream.positions()) == chunks, 60.0)
        examples = StreamSource(stream, SPEC, "fail").read(dict.fromkeys(range(chunks), 0))
        train.popen.send_signal(signal.SIGTERM)
        code, said = train.end()
        assert code == 0, said
    finally:
        train.kill()
        train.close()
    rows, labels = [], []
    for chunk in examples:
        rows += slots_of(chunk.batch)
        labels += chunk.batch.labels.tolist()
    assert [row for row, label in zip(rows, labels, strict=True) if not label] == served
    assert [row for row, label in zip(rows, labels, strict=True) if label] == [served[i] for i in clicks]
    assert len({tuple(row) for row in served}) > 50
    trained = [set(load_state(path, SPEC).slots.tolist()) for path in (before, after)]
    assert trained[1] - trained[0] == set().union(*served) - trained[0] != set()
    model = load_model(after)
    assert model.windows is not None
    assert model.windows.keys == 0
    assert model.predict([{"user": "u1"}])[0] > 0


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (lambda _: {}, "' holds no window features: the server that logged the row had a model without"),
        (lambda text: {SERVED: f"{text} 1"}, "1' does not hold the features of the spec's windows; train"),
        (
            lambda text: {SERVED: text.replace(text[0], "x")},
            "does not hold the features of the spec's windows",
        ),
    ],
)
def test_rows_without_the_features_of_these_windows_are_bad(
    stream: ExampleStream, wrong: Callable[[str], dict[str, str]], problem: str
) -> None:
    row = {"t": START, "user": "u1", "site": "s1"}
    history = NotingHistory(SPEC, Windows(SPEC))
    transform = Transform(SPEC, with_label=False)
    batch = transform.apply(transform.cells_of([row]), None, history)
    (good,) = history.noted([row])
    rows = [{"click": 0, **each} for each in (good, {**row, **wrong(good[SERVED])}, good)]
    stream.append(0, [orjson.dumps(each) for each in rows], {})
    with pytest.raises(DataError, match=f"chunk 0:2: column '{SERVED}': '.*{problem}"):
        StreamSource(stream, SPEC, "fail").read({0: 0})
    skipping = StreamSource(stream, SPEC, "skip")
    (read,) = skipping.read({0: 0})
    assert slots_of(read.batch) == 2 * slots_of(batch)
    assert skipping.bad_rows.count == 1
