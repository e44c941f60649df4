"""Where served models come from: a folder, the labels of a registry, MLflow, or a job in Redis."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from ctr.api.operations.stand_in import standing_in
from ctr.errors import ModelError, StoreError
from ctr.features import is_uri
from ctr.features.folder import MANIFEST
from ctr.model import LinearModel, Model, load_model, read_manifest
from ctr.outputs import replace_file
from ctr.registry import Registry

if TYPE_CHECKING:
    from ctr.lookup import LiveWeights

logger = logging.getLogger(__name__)

CANARY = "canary"
"""The label of the version that answers a share of the requests."""
SHADOW = "shadow"
"""The label of the version that also predicts a share of the requests, for the metrics alone."""

NEAR_S, FAR_S = 0.5, 1.0
"""Between two looks at a folder of this machine, and at a source behind a network."""
MOST_SHOWN = 100
_STORE_S = 5.0
"""A store that has not answered for this long, despite retries, counts as unreachable."""
_METRICS = ("logloss", "normalized_entropy", "auc", "calibration")


def summary_of(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """The metrics by which versions are compared: those of the hold-out, if there was one."""
    summary = metrics.get("holdout") or metrics.get("progressive") or {}
    return {name: summary[name] for name in _METRICS if name in summary}


class ModelSource(Protocol):
    """Versions of a model by the labels under which they are served. Its methods may block."""

    name: str
    """As the user knows it."""
    main: str
    """The label that must exist."""
    poll_s: float
    """How often to look for changes."""
    fixed: str = "the server serves a folder, which has no labels; start it with --registry"
    """Why labels cannot be changed, in a source without labels."""

    def versions(self) -> Mapping[str, Sequence[str]]:
        """By label, the version to serve now, then those to serve if it fails, the best first; cheap.

        Raises CtrError if it cannot be read.
        """

    def load(self, version: str) -> Model:
        """The model of such a version. Raises CtrError."""

    def available(self) -> list[dict[str, Any]] | None:
        """The versions that could be served, the latest first; None in a source without labels.

        Raises CtrError if it cannot be read.
        """
        return None

    def change(self, label: str, version: str | None) -> str:
        """Point a label to a version, or to the previous one (None); returns that. Raises CtrError."""
        raise ModelError(self.fixed)


class FolderSource(ModelSource):
    """The model in a folder, which another model may replace."""

    main, poll_s = "model", NEAR_S

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._file_state: tuple[int, int, int] | None = None
        self._version = ""

    def versions(self) -> Mapping[str, Sequence[str]]:
        try:
            stat = os.stat(self._path / MANIFEST)
        except OSError:
            read_manifest(self._path)  # raises the reason
            raise ModelError(f"{self._path}: cannot be read; restore it.") from None
        state = stat.st_ino, stat.st_mtime_ns, stat.st_size
        if state != self._file_state:
            self._version, self._file_state = str(read_manifest(self._path)["id"]), state
        return {self.main: [self._version]}

    def load(self, version: str) -> Model:
        return load_model(self._path)  # perhaps a later one, which the next look finds


class MlflowSource(ModelSource):
    """The model that an alias or a version of MLflow's registry points to."""

    main, poll_s = "model", FAR_S
    fixed = "the server serves a model of MLflow; set its alias there"

    def __init__(self, uri: str) -> None:
        from ctr.mlflow import RegisteredModel

        self.name = uri
        self._registered = RegisteredModel(uri)

    def versions(self) -> Mapping[str, Sequence[str]]:
        return {self.main: [str(read_manifest(self._registered.folder())["id"])]}

    def load(self, version: str) -> Model:
        return load_model(self._registered.folder())


class StoreSource(ModelSource):
    """The model that a running job trains in Redis, whose weights follow the job's pushes."""

    main, poll_s = "live", NEAR_S
    fixed = "the server serves the model of a running job, which has no labels"

    def __init__(self, url: str, published: ModelSource | None = None, shared: Path | None = None) -> None:
        """`published`: what is served until a job is found. Live weights stay, whatever the job does.

        `shared`: the folder in which the processes of a server share the weights.
        """
        from ctr.ps import JobBoard, parse_redis_url, require_store_url

        require_store_url(url)
        self._url, self._published = parse_redis_url(url), published
        self._job_file = None if shared is None else shared / "live.json"
        """Has the job whose weights the processes share."""
        self._has_been_live = self._has_stood_in = False
        self._weights: LiveWeights | None = None
        """Those that were loaded last."""
        self.name = replace(self._url, files=()).public
        self._open_board = partial(JobBoard, self._url, timeout_s=_STORE_S, patience_s=_STORE_S)

    def versions(self) -> Mapping[str, Sequence[str]]:
        try:
            return {self.main: [self._job().version]}
        except StoreError as error:
            if self._published is None or self._has_been_live:
                raise
            shared = self._shared_job()
            if shared is None and not self._has_stood_in:
                self._has_stood_in = True
                logger.warning("%s Until then, a version of %s is served", error, self._published.name)
            live = [] if shared is None else [shared.version]
            return {self.main: [*live, *self._published.versions()[self._published.main]]}

    def load(self, version: str) -> Model:
        if self._published is not None and not version.startswith(_LIVE):
            return standing_in(self._published.load(version), self.name)
        from ctr.lookup import LiveWeights
        from ctr.workers import JobDescription

        try:
            job = self._job()
        except StoreError:
            shared = self._shared_job()
            if shared is None:
                raise
            job = shared
        if job.version != version:
            raise StoreError(f"{self.name}: the job has just changed; its next version is served soon.")
        description = JobDescription.from_bytes(job.description.encode())
        spec, optimizer = description.feature_spec(), description.optimizer_in(job.pass_)
        join = partial(description.join_store, self._url, patience_s=_STORE_S, from_replicas=True)
        self._weights = weights = LiveWeights(join, spec.bits, optimizer)
        facts = {"optimizer": optimizer.to_json(), "live": {"store": self.name, "job": job.id}}
        model = Model.of(spec, LinearModel.following(weights, spec.bits), facts)
        del model.manifest["nonzero_weights"]
        self._has_been_live = True
        if self._job_file is not None:
            with suppress(OSError), replace_file(self._job_file) as draft:
                draft.write_bytes(orjson.dumps(job))
        return replace(model, manifest={**model.manifest, "id": version})

    def _job(self) -> _LiveJob:
        """The job on the board; the live weights learn whether anybody trains it."""
        with closing(self._open_board()) as board:  # opened each time, as this process may be forked
            job = board.job()
            if job is None:
                raise StoreError(
                    f"{self.name}: no job trains this model; start one with `ctr train --store`."
                )
            from ctr.workers import JobDescription

            view = board.look(shards=False)
        if (weights := self._weights) is not None:
            is_trained = view.coordinator_alive or any(worker.lease_left_s > 0 for worker in view.workers)
            if is_trained or view.state == "finished":  # whose weights are final, and never old
                weights.untrained_since = None
            elif weights.untrained_since is None:
                weights.untrained_since = monotonic()
        pass_ = JobDescription.from_bytes(job.description).pass_at(view)
        return _LiveJob(job.id, job.launch, pass_, job.description.decode())

    def _shared_job(self) -> _LiveJob | None:
        """The job whose weights the processes share; they have these also while the store is away."""
        if self._job_file is None or not self._job_file.exists():
            return None
        return _LiveJob(**orjson.loads(self._job_file.read_bytes()))


_LIVE = "live-"


@dataclass(frozen=True, slots=True)
class _LiveJob:
    """A job in one of its passes."""

    id: str
    launch: str
    pass_: int
    """From 0."""
    description: str

    @property
    def version(self) -> str:
        """The version of its weights; it changes when the job is resumed or restarted, and with each pass.

        The same state has other weights in another pass, as penalties grow with the passes.
        """
        return f"{_LIVE}{self.launch[:12]}" + (f".{self.pass_ + 1}" if self.pass_ else "")


class RegistrySource(ModelSource):
    """The versions that labels of a registry point to."""

    def __init__(self, place: str, labels: Sequence[str]) -> None:
        """The first of `labels` must exist; the others may come and go."""
        self.name = place
        self.main = labels[0]
        self.poll_s = FAR_S if is_uri(place) else NEAR_S
        self._registry = Registry(place if is_uri(place) else os.path.abspath(place))
        self._labels = labels

    def versions(self) -> Mapping[str, Sequence[str]]:
        try:
            labels = self._registry.labels(self.main)
        except ModelError:
            self._registry.require()  # without a registry, there is no label to create
            raise
        return {
            label: [labels[label].version, *labels[label].before] for label in self._labels if label in labels
        }

    def load(self, version: str) -> Model:
        return self._registry.load(version)

    def available(self) -> list[dict[str, Any]]:
        self._registry.require()  # without a registry, it would seem to have no versions
        return [
            {
                "version": each.id,
                "created": each.created,
                "labels": each.labels,
                "metrics": summary_of(each.manifest.get("metrics", {})),
            }
            for each in self._registry.versions()[:MOST_SHOWN]
        ]

    def change(self, label: str, version: str | None) -> str:
        if version is None:
            return self._registry.rollback(label)
        self._registry.label(label, version)
        return self._registry.version_of(label)
