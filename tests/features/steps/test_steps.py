"""The registry of transform steps, by a step that learns: from a first pass to a served prediction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from ctr.api.app import create_app
from ctr.errors import CtrError, DataError, ModelError, SpecError
from ctr.features import (
    SKIP,
    DatasetSource,
    RawSource,
    Transform,
    fit,
    open_source,
    parse_spec,
    write_dataset,
)
from ctr.features.columns import Buckets, Column, TokenCounts
from ctr.features.spec import LEARNT, FittedSpec, NumberField, fields, learnt_of, spec_files
from ctr.features.steps import STEPS, Step, register_step
from ctr.features.text import hash_bytes
from ctr.jobs import run_train_job
from ctr.jobs.training.distributed import learnt_text
from ctr.model import load_model
from ctr.settings import TrainJob
from ctr.workers.description import _spec
from tests.api.running import run_server
from tests.command_line import Cli
from tests.ctr.distributed_jobs import describe, in_memory, in_threads
from tests.ps.redis_servers import needs_redis

PLAIN = """version: 1
source: {format: delimited}
label: y
bits: 20
fields:
- {name: price, type: number, transform: quarters}
- {name: site, type: category}
crosses:
- {name: both, of: [site, price]}
"""


class QuarterField(NumberField):
    """A number replaced by the quarter of the data that it is in."""

    parts: int = 4

    learns: ClassVar[tuple[str, ...]] = ("edges",)


class Quarters:
    def __init__(self, field: QuarterField) -> None:
        self._field, self._seen = field, np.empty(0)

    def prepared(self, column: Column) -> NDArray[np.float64]:
        numbers = column.numbers
        return numbers.values[numbers.present]

    def add(self, taken: NDArray[np.float64]) -> None:
        self._seen = np.concatenate([self._seen, taken])

    def learnt(self) -> dict[str, NDArray[Any]]:
        if not self._seen.size:
            raise DataError(f"field {self._field.name!r}: there is no number to learn from.")
        return {"edges": np.quantile(self._seen, np.arange(1, self._field.parts) / self._field.parts)}


def quarter_of(field: QuarterField, column: Column, seed: int, learnt: Any) -> Buckets:
    numbers = column.numbers
    buckets = np.searchsorted(learnt["edges"], numbers.values, side="right")
    return Buckets(buckets.astype(np.uint64), numbers.present, numbers.problem)


class WordsField(fields.InputField):
    """The words of a text, each as often as it is there."""

    type: Literal["words"]

    several: ClassVar[bool] = True


def words_of(field: WordsField, column: Column, seed: int, learnt: Any) -> TokenCounts:
    buffer, starts, ends, status = column.text
    texts = [
        buffer[a:b].tobytes().split() if ok else []
        for a, b, ok in zip(starts, ends, status == 0, strict=True)
    ]
    hashes = [hash_bytes(word, seed) for text in texts for word in dict.fromkeys(text)]
    counts = [text.count(word) for text in texts for word in dict.fromkeys(text)]
    bounds = np.cumsum([0, *(len(set(text)) for text in texts)])
    problem = np.zeros(len(texts), np.uint8)
    return TokenCounts(bounds, np.array(hashes, np.uint64), np.array(counts, np.float32), problem)


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The registries have two steps more, for the time of a test."""
    monkeypatch.setattr(fields, "_KINDS", {type_: dict(kinds) for type_, kinds in fields._KINDS.items()})
    before = dict(STEPS)
    register_step("quarters", Step(QuarterField, quarter_of, Quarters), "quarters")
    register_step("words", Step(WordsField, words_of))
    yield
    STEPS.clear()
    STEPS.update(before)


def log_of(path: Path, rows: int, seed: int = 1) -> Path:
    rng = np.random.default_rng(seed)
    price, site = rng.exponential(20, rows), rng.integers(0, 9, rows)
    click = rng.random(rows) < np.where(price < 10, 0.7, 0.1)
    lines = [f"{int(c)},{p:.3f},s{s}" for c, p, s in zip(click, price, site, strict=True)]
    lines[3] = "1,,s1"  # a price that is missing
    path.write_text("\n".join(["y,price,site", *lines, ""]))
    return path


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    path = tmp_path / "quarters.yaml"
    path.write_text(PLAIN)
    return path


def test_a_fitted_step_from_raw_rows_to_served_predictions(tmp_path: Path, spec_file: Path, cli: Cli) -> None:
    log, hashed, model = log_of(tmp_path / "log.csv", 3_000), tmp_path / "hashed", tmp_path / "model"
    words = ["features", "build", log, "--spec", spec_file, "--out", hashed]
    assert cli(*words).code == 0
    spec = DatasetSource(hashed).spec
    assert isinstance(spec, FittedSpec)
    prices = [float(line.split(",")[1] or "nan") for line in log.read_text().split()[1:]]
    edges = np.nanquantile(prices, [0.25, 0.5, 0.75])
    np.testing.assert_array_equal(learnt_of(spec)["price/edges"], edges)

    summary = run_train_job(TrainJob(inputs=[hashed], spec=None, model=model, chunk=500))
    loaded = load_model(model)
    assert loaded.spec == spec
    assert loaded.spec.fingerprint == summary.model.spec.fingerprint == loaded.manifest["spec_fingerprint"]
    other = log_of(tmp_path / "other.csv", 400, seed=2)
    offline = np.concatenate([loaded.predict(b) for b in open_source([other], loaded.spec).batches(150)])
    again = np.concatenate([summary.model.predict(b) for b in open_source([other], spec).batches(77)])
    np.testing.assert_array_equal(offline, again)
    cheap, dear = (
        np.array([float(line.split(",")[1] or "nan") for line in other.read_text().split()[1:]]) < p
        for p in (5, 1e9)
    )
    assert offline[cheap].mean() > 0.5 > offline[dear & ~cheap].mean()

    rows = [
        dict(zip(("price", "site"), line.split(",")[1:], strict=True))
        for line in other.read_text().split()[1:]
    ]
    with run_server(create_app(loaded)) as running:
        answer = running.client.post("/v1/predict", json={"rows": rows}).json()
    np.testing.assert_array_equal(np.array(answer["predictions"], np.float32), offline)


@needs_redis
def test_a_fitted_step_through_redis_is_as_in_memory(tmp_path: Path, redis_url: str) -> None:
    """What the step has learnt travels to the workers in the description of the job, and into the model."""
    log, hashed = log_of(tmp_path / "log.csv", 3_000), tmp_path / "hashed"
    spec = fit(parse_spec(PLAIN, "quarters"), [log])
    write_dataset(RawSource(spec, [log]).batches(65_536), spec, hashed)
    store, memory = f"{redis_url}?model=fitted", tmp_path / "memory"
    job = TrainJob(inputs=[hashed], spec=None, model=memory, chunk=500, consistency="bsp")
    other = log_of(tmp_path / "other.csv", 400, seed=2)
    exact = run_train_job(job)
    stored = run_train_job(job.with_values(model=tmp_path / "redis", store=store))
    assert stored.progressive.logloss == pytest.approx(exact.progressive.logloss, abs=2e-4)
    loaded = load_model(tmp_path / "redis")
    assert loaded.spec == spec
    batch = next(iter(open_source([other], loaded.spec).batches(400)))
    predictions = loaded.predict(batch)
    np.testing.assert_allclose(predictions, load_model(memory).predict(batch), atol=2e-3)
    texts = (line.split(",")[1:] for line in other.read_text().split()[1:])
    rows = [dict(zip(("price", "site"), values, strict=True)) for values in texts]
    with run_server(create_app(loaded)) as running:
        answer = running.client.post("/v1/predict", json={"rows": rows}).json()
    np.testing.assert_array_equal(np.array(answer["predictions"], np.float32), predictions)

    raw = describe(log, spec, learnt=learnt_text(spec))  # two workers, which open the raw file themselves
    (_, logloss), (_, report) = in_memory(raw), in_threads(raw, store, 2)
    assert report.progressive.summary().logloss == pytest.approx(logloss, abs=2e-4)


def test_values_go_through_the_same_hashing_and_crossing(tmp_path: Path) -> None:
    """The learnt edges as edges of the spec's own give the same features, but for the fields' seeds."""
    log = log_of(tmp_path / "log.csv", 1_000)
    fitted = fit(parse_spec(PLAIN, "quarters"), [log])
    edges = [float(edge) for edge in learnt_of(fitted)["price/edges"]]
    same = parse_spec(PLAIN.replace("transform: quarters", f"transform: edges, edges: {edges}"), "edges")
    for found, expected in zip(
        RawSource(fitted, [log]).batches(300), RawSource(same, [log]).batches(300), strict=True
    ):
        np.testing.assert_array_equal(found.indptr, expected.indptr)
        np.testing.assert_array_equal(found.slots, expected.slots)
    keeps = PLAIN.replace("quarters}", "quarters, missing: feature}")
    batch = RawSource(fit(parse_spec(keeps, "keeps"), [log]), [log]).sample(5)
    assert np.diff(batch.indptr).tolist() == [4] * 5


def test_any_number_of_features_beside_others(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_text("y,t,n\n1,a b a,5\n0,,1\n1,x,oops\n0,b,\n")
    text = """{version: 1, source: {format: delimited}, label: y, bits: 30, fields: [
        {name: t, type: words}, {name: n, type: number, transform: log},
        {name: u, column: t, type: words}]}"""
    spec = parse_spec(text, "words")
    (batch,) = RawSource(spec, [path], on_bad_rows=SKIP).batches(10)
    t, u = (hash_bytes(name, 0) for name in (b"t", b"u"))
    slot = [[hash_bytes(word, seed) % 2**30 for seed in (t, u)] for word in (b"a", b"b")]
    n = [hash_bytes(value.to_bytes(8, "little"), hash_bytes(b"n", 0)) % 2**30 for value in (4, 1)]
    assert batch.indptr.tolist() == [0, 6, 8, 11]
    a, b = slot
    assert batch.slots.tolist() == [0, n[0], a[0], b[0], a[1], b[1], 0, n[1], 0, b[0], b[1]]
    assert batch.values.tolist() == [1, 1, 2, 1, 2, 1, 1, 1, 1, 1, 1]
    assert [len(b) for b in RawSource(spec, [path], on_bad_rows=SKIP).batches(1)] == [1, 1, 1]


def test_fields_of_several_steps_each_learn_from_the_column_they_share(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log.csv", 1_000)
    text = PLAIN.replace(
        "crosses:",
        """- {name: tenths, column: price, type: number, transform: quarters, parts: 10}
- {name: size, column: price, type: number, transform: log}
crosses:
- {name: learnt, of: [price, tenths, size]}""",
    )
    spec = fit(parse_spec(text, "shared"), [log])
    assert {name: found.size for name, found in learnt_of(spec).items()} == {
        "price/edges": 3,
        "tenths/edges": 9,
    }
    (batch,) = RawSource(spec, [log]).batches(1_000)
    sizes = np.diff(batch.indptr)
    assert (sizes[3], set(sizes)) == (2, {2, 7})  # one price is missing
    quarters, tenths = ({batch.slots[i] for i in batch.indptr[:-1][sizes == 7] + k} for k in (1, 3))
    assert (len(quarters), len(tenths)) == (4, 10)


def test_a_field_has_one_step() -> None:
    with pytest.raises(
        SpecError, match=r"fields\[0\]\.transform: a field has one transform, got \['log', 'q"
    ):
        parse_spec(PLAIN.replace("transform: quarters", "transform: [log, quarters]"), "chain")


def test_a_spec_that_has_not_learnt_yet_is_refused(tmp_path: Path) -> None:
    spec = parse_spec(PLAIN, "quarters")
    assert learnt_of(spec) is None
    with pytest.raises(
        SpecError, match=r"field 'price': its transform learns from data first; .* features build"
    ):
        Transform(spec, with_label=True)
    empty = tmp_path / "empty.csv"
    empty.write_text("y,price,site\n1,,a\n")
    with pytest.raises(DataError, match="no number to learn from"):
        fit(spec, [empty])
    with pytest.raises(SpecError, match="'price/edges' is missing"):
        FittedSpec.of(spec, {})
    with pytest.raises(SpecError, match="'site/edges' is no array of its fields"):
        FittedSpec.of(spec, {"price/edges": np.zeros(3), "site/edges": np.zeros(3)})
    plain = parse_spec(PLAIN.replace("transform: quarters", "transform: log"), "log")
    assert FittedSpec.of(plain, {}) is plain
    assert fit(plain, []) is plain


def test_what_was_learnt_is_part_of_the_fingerprint_and_travels() -> None:
    spec = parse_spec(PLAIN, "quarters")
    fitted = FittedSpec.of(spec, {"price/edges": np.array([1.0, 2.0, 3.0])})
    others = [np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 3.0], np.float32), np.array([[1.0, 2.0, 3.0]])]
    prints = {FittedSpec.of(spec, {"price/edges": edges}).fingerprint for edges in others}
    assert len({spec.fingerprint, fitted.fingerprint, *prints}) == 5
    assert fitted.fingerprint == "03170439b7028168e0fe68396ea5bce3dde2d988457e205249b2fc8ede141078"
    told = _spec(fitted.to_yaml(), learnt_text(fitted))
    assert told == fitted
    assert told.fingerprint == fitted.fingerprint
    assert learnt_text(parse_spec(PLAIN.replace("transform: quarters", "transform: log"), "log")) is None


def test_torn_arrays_are_noticed(tmp_path: Path) -> None:
    log, hashed, model = log_of(tmp_path / "log.csv", 300), tmp_path / "hashed", tmp_path / "model"
    spec = fit(parse_spec(PLAIN, "quarters"), [log])
    for _ in range(2):  # the second takes the place of the first
        write_dataset(RawSource(spec, [log]).batches(65_536), spec, hashed)
        run_train_job(TrainJob(inputs=[hashed], spec=None, model=model, chunk=100))
    other = FittedSpec.of(spec, {"price/edges": np.array([1.0, 2.0, 3.0])})
    for folder, read, error in (
        (hashed, DatasetSource, DataError),
        (model, load_model, ModelError),
    ):
        whole = (folder / LEARNT).read_bytes()
        for content in (whole[:-1], b"", spec_files(other)[LEARNT], None):
            (folder / LEARNT).unlink()
            if content is not None:
                (folder / LEARNT).write_bytes(content)
            with pytest.raises(CtrError) as met:
                read(folder)
            assert isinstance(met.value, error)
            assert str(folder) in str(met.value)
            (folder / LEARNT).write_bytes(whole)
        read(folder)
