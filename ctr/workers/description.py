"""`JobDescription`: what a worker needs to know about a job."""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, PlainSerializer, PlainValidator, ValidationError

from ctr.defaults import STALL_S
from ctr.errors import DataError, ModelError, StoreError, first_problem, named
from ctr.features import (
    FAIL,
    SKIP,
    Batch,
    DatasetSource,
    ExampleSource,
    FeatureSpec,
    input_files,
    is_dataset,
    is_uri,
    open_source,
)
from ctr.features.dataset import manifest_of
from ctr.features.inputs import file_digests
from ctr.features.spec import LEARNT, SPEC, spec_files, spec_of_files
from ctr.learn import Admission, Learner, Sampling
from ctr.optimizers import Optimizer, Passes, optimizer_from_json
from ctr.ps import DEFAULT_FILTERS, BoardView, Filters, RedisStore, RedisUrl, parse_redis_url
from ctr.ps.wire import PATIENCE_S
from ctr.stream import LANES, ExampleStream, StreamSource
from ctr.workers.data_plan import DataPlan

if TYPE_CHECKING:
    from ctr.features import RawSource
    from ctr.features.inputs import InputFile

Consistency = Literal["bsp", "ssp", "asp"]

CONSISTENCY: Consistency = "ssp"
"""The default of jobs through Redis."""

_ENDLESS = 1 << 40
"""Number of chunks of a lane: more than anybody reads."""
_REMEDY = "every worker needs the same data at the same path"


@lru_cache(maxsize=4)
def _spec(text: str, learnt: str | None) -> FeatureSpec:
    files = {SPEC: text.encode()} | ({} if learnt is None else {LEARNT: b64decode(learnt)})
    return spec_of_files(files, "the job's spec")


def learnt_text(spec: FeatureSpec) -> str | None:
    """`JobDescription.learnt` of a spec."""
    learnt = spec_files(spec).get(LEARNT)
    return None if learnt is None else b64encode(learnt).decode()


def _optimizer(value: Any) -> Optimizer:
    """An optimizer as it is, or from its JSON."""
    if isinstance(value, Optimizer):
        return value
    try:
        return optimizer_from_json(value)
    except (ModelError, TypeError) as error:
        raise ValueError(str(error)) from error


class JobDescription(BaseModel):
    """What to train and how: the same for all workers, and part of the store and every checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    inputs: tuple[str, ...]
    """Absolute paths, or URIs; every worker must find the same data there."""
    input_bytes: int | None = None
    """The size of the files, or of the data set; None: not checked."""
    input_digest: str | None = None
    """`input_digest` of raw files on disks; None: not checked."""
    dataset: str | None = None
    """The `digest` of a hashed data set, which must be the same for every worker; None: not checked."""
    stream: str | None = None
    """The URL of a stream, without user and password, instead of inputs."""
    stream_from: tuple[int, ...] = ()
    """The first chunk of the job in each lane."""
    hashed: bool
    """Whether the input is a hashed data set."""
    spec: str
    """The feature spec, as YAML."""
    learnt: str | None = None
    """What the spec learnt in a first pass, as a safetensors file in base64; None: nothing."""
    on_bad_rows: Literal["fail", "skip", "quarantine"]
    """`quarantine` is done by the command that leads the job; workers skip bad rows."""
    without: str | None = None
    """The condition of rows that are excluded from training; None: no rows."""
    held_out: int = 0
    """Number of `rows` that meet it."""
    held_out_of_shards: tuple[int, ...] = ()
    """The same for each data shard of a pass."""
    splits: tuple[tuple[tuple[int, int], ...], ...] = ()
    """`RawSource.splits` of raw files; empty: workers read the files from their start."""
    rows: int
    chunk: int
    shard_chunks: int
    passes: int
    passes_before: float
    """Passes over the rows of the initial state, see `Passes`; 0 without one."""
    rows_before: int = 0
    """The rows of the initial state."""
    lineage: tuple[dict[str, Any], ...] = ()
    """The lineage of the model of the initial state, for the manifest; empty without one."""
    origin: dict[str, Any] = {}
    """The origin of the initial state, for the manifest; empty if unknown."""
    input_digests: tuple[str, ...] = ()
    """Digests of the inputs, for the manifest."""
    workers: int
    safe_adding: float
    admit: float = 1.0
    max_evidence: float | None = None
    """See `Learner.max_evidence`; None: no limit."""
    negative_rate: float = 1.0
    pos_weight: float = 1.0
    consistency: Consistency
    staleness: int
    stall_s: float = STALL_S
    """A live worker without progress for this long counts as dead."""
    optimizer: Annotated[Optimizer, PlainValidator(_optimizer), PlainSerializer(Optimizer.to_json)]
    z_bits: int = 13
    """Fraction bits of `z` in the store; the default is that of descriptions without this field."""
    n_bits: int = 8
    """The same for `n`."""
    filters: Filters

    @property
    def ranks(self) -> int:
        """Ranks of a BSP job; 0 for an SSP job."""
        return self.workers if self.consistency == "bsp" else 0

    @property
    def bound(self) -> int | None:
        """How many chunks a worker may be ahead of the slowest; None: no limit."""
        return None if self.consistency == "asp" else self.staleness

    def plan(self) -> DataPlan:
        """The division of the rows. In a stream, a lane is a data shard, and a chunk counts as a row."""
        if self.stream is not None:
            return DataPlan(rows=LANES * _ENDLESS, chunk=1, shard_chunks=_ENDLESS)
        return DataPlan(
            rows=self.rows,
            chunk=self.chunk,
            shard_chunks=self.shard_chunks,
            passes=self.passes,
            ranks=max(self.ranks, 1),
            held_out=self.held_out,
            held_out_of_shards=self.held_out_of_shards,
        )

    def optimizer_in(self, shard_pass: int) -> Optimizer:
        """The optimizer in a pass of this job, from 0."""
        return self.optimizer.in_pass(self._before.during(shard_pass + 1, self.rows - self.held_out))

    def pass_at(self, view: BoardView) -> int:
        """The pass of the last data shard that was begun, from 0."""
        plan = self.plan()
        pushed = (plan.place(rank, each.pushed) + 1 for rank, each in enumerate(view.ranks))
        return plan.pass_of(max(view.started, *pushed, 1) - 1)

    def passes_after(self, number: int) -> float:
        """Passes over the rows of the state after pass `number` of this job, from 1; see `Passes`.

        Each row of a stream is learnt once, with the penalties that the job began with.
        """
        if self.stream is not None:
            return self._before.during(1, 0)
        return self._before.after(number, self.rows - self.held_out)

    @property
    def _before(self) -> Passes:
        return Passes(self.passes_before, self.rows_before)

    def learner(self) -> Learner:
        """A new learner for one worker."""
        admission = Admission(self.admit, self.feature_spec().seed)
        limit = inf if self.max_evidence is None else self.max_evidence
        return Learner(self.safe_adding, admission, self.sampling, self.n_bits, limit)

    @property
    def sampling(self) -> Sampling:
        """Which rows to learn from."""
        return Sampling(self.negative_rate, self.pos_weight, self.feature_spec().seed)

    def feature_spec(self) -> FeatureSpec:
        """The feature spec."""
        return _spec(self.spec, self.learnt)

    def facts(self) -> dict[str, str]:
        """The facts that identify the model in the store."""
        return {
            "fingerprint": self.feature_spec().fingerprint,
            **{name: str(value) for name, value in self.optimizer.to_json().items()},
        }

    def join_store(
        self, url: RedisUrl, patience_s: float = PATIENCE_S, *, from_replicas: bool = False
    ) -> RedisStore:
        """The store with the job's model. Raises StoreError if there is none, or another model.

        `patience_s`, `from_replicas`: see `RedisStore`.
        """
        return RedisStore(
            url,
            bits=self.feature_spec().bits,
            width=self.optimizer.width,
            facts=self.facts(),
            z_bits=self.z_bits,
            n_bits=self.n_bits,
            join=True,
            patience_s=patience_s,
            from_replicas=from_replicas,
        )

    def open_source(
        self, inputs: Sequence[str | Path | InputFile] | None = None
    ) -> RawSource | DatasetSource:
        """The examples as a worker reads them. Raises DataError if they are missing or different.

        `inputs`: the inputs of a source that was opened before; files must not have changed since.
        """
        for path in self.inputs:
            if not is_uri(path) and not os.path.exists(path):
                raise DataError(f"{path}: the job's input is not here; {_REMEDY}.")
        choice = None
        if self.without is not None:
            from ctr.features.readers import RowChoice

            choice = RowChoice.parse(self.without, meets=False)
        spec = self.feature_spec()
        source = open_source(
            inputs or self.inputs,
            None if self.hashed and not spec.scales else spec,
            on_bad_rows=FAIL if self.on_bad_rows == "fail" else SKIP,
            choice=choice,
        )
        size = input_bytes(source.inputs)
        if self.input_bytes not in (None, size):
            raise DataError(
                f"{', '.join(self.inputs)}: {size:,} bytes here, but {self.input_bytes:,} where the job was "
                f"started; {_REMEDY}."
            )
        if self.input_digest is not None and self.input_digest != input_digest(source.inputs):
            raise DataError(
                f"{', '.join(self.inputs)}: other content here than where the job was started, though of the "
                f"same size; {_REMEDY}."
            )
        if self.splits and not isinstance(source, DatasetSource):
            source.read_in_splits(self.splits)
        if isinstance(source, DatasetSource) and self.dataset not in (None, source.manifest.digest):
            raise DataError(
                f"{self.inputs[0]}: the data set has the digest {source.manifest.digest} here, but "
                f"{self.dataset} where the job was started: was it built again? {_REMEDY.capitalize()}."
            )
        return source

    def open_stream(self, store: RedisUrl) -> StreamSource:
        """The examples of a stream, which is opened with the store's user and password.

        Raises StoreError if it cannot be reached.
        """
        assert self.stream is not None
        url = replace(parse_redis_url(self.stream), username=store.username, password=store.password)
        bad_rows: Literal["fail", "skip"] = "fail" if self.on_bad_rows == "fail" else "skip"
        return StreamSource(ExampleStream(url), self.feature_spec(), bad_rows)

    def sample(self, source: ExampleSource | StreamSource, rows: int) -> Batch:
        """The first rows to learn from."""
        return source.sample(rows) if isinstance(source, StreamSource) else self.sampling.sample(source, rows)

    def to_bytes(self) -> bytes:
        return self.model_dump_json().encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> JobDescription:
        """Parse a description. Raises StoreError if another version of ctr wrote it."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise StoreError(
                f"the job's description cannot be read ({first_problem(error)}): was it written by another "
                "version of ctr? Use the same one everywhere."
            ) from None


def input_bytes(inputs: Sequence[str | Path | InputFile]) -> int:
    """The size of the input files, or of the data set."""
    if isinstance(folder := inputs[0], str | Path) and is_dataset(folder):
        return manifest_of(folder).bytes
    return sum(file.size for file in input_files(inputs))


def input_digest(inputs: Sequence[str | Path | InputFile]) -> str | None:
    """A digest of the `file_digests` of raw files, to detect other files of the same size.

    None for a data set, which has a digest of its own, and for URIs, which name the same file everywhere.
    """
    if isinstance(folder := inputs[0], str | Path) and is_dataset(folder):
        return None
    files = input_files(inputs)
    if any(file.is_remote for file in files):
        return None
    return sha256(" ".join(file_digests(files)).encode()).hexdigest()[:12]


def filters_for(consistency: Consistency, chosen: Mapping[str, Any]) -> Filters:
    """The filters of a job: the chosen settings by name, and defaults.

    Raises ModelError for filters that a BSP job cannot have.
    """
    if not isfinite(chosen.get("defer", 0.0)):
        raise ModelError(f"{named('defer')} is not a number: give nats, such as 0.01, or 0.")
    if consistency != "bsp":
        return replace(DEFAULT_FILTERS, **chosen)
    wrong = [named(name) for name, value in chosen.items() if value]
    if wrong:
        raise ModelError(
            f"{wrong[0]} does not go with bsp, where every worker sees all updates of the previous round; "
            f"leave it out, or train with {named('consistency', 'ssp')}."
        )
    return Filters()


def absolute(inputs: Sequence[str | Path | InputFile]) -> tuple[str, ...]:
    """The absolute path or URI of a data set, or of each raw file, for workers in other folders."""
    if isinstance(folder := inputs[0], str | Path) and is_dataset(folder):
        return (str(folder) if is_uri(str(folder)) else os.path.abspath(folder),)
    return tuple(file.location for file in input_files(inputs))
