"""The folder of a model: its manifest, and its other files, verified by the manifest's digests."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Self, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ctr.errors import ModelError, first_problem
from ctr.features.dataset import manifest_of
from ctr.features.inputs import InputFile, file_digests
from ctr.optimizers import Optimizer, optimizer_from_json

MANIFEST: Final = "manifest.json"
FORMAT: Final = "ctr model"
FORMAT_VERSION: Final = 1
"""The version of the model folder; a program reads the version that it writes and no other."""

DIGESTS = "input_digests"
"""The key of the digests in a manifest's entries for training, calibration and lineage."""

SEEN = "the model was {} on rows of {}, so these metrics are optimistic; evaluate on other rows"
"""A warning, to be formatted with the result of `seen_rows` and the inputs."""


class OptimizerEntry(BaseModel):
    """An optimizer's `to_json`, and the number of its passes."""

    model_config = ConfigDict(extra="allow", strict=True, defer_build=True)

    passes: Annotated[float, Field(ge=1)]

    @property
    def optimizer(self) -> Optimizer:
        return optimizer_from_json(self.model_extra or {})

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        try:
            optimizer_from_json(self.model_extra or {})
        except ModelError as error:
            raise ValueError(str(error)) from error
        return self


class TrainingEntry(BaseModel):
    """The entries about training that a warm start needs."""

    model_config = ConfigDict(strict=True, defer_build=True)

    chunks: Annotated[int, Field(ge=0, lt=1 << 62)] = 0
    lineage: list[dict[str, Any]] = []


class ManifestEntries(BaseModel):
    """The required entries of a manifest; it has others."""

    model_config = ConfigDict(strict=True, defer_build=True)

    id: str
    spec_fingerprint: str
    optimizer: OptimizerEntry
    training: TrainingEntry = TrainingEntry()
    sha256: dict[str, str]


def lineage(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The lineage of a model that continues this one, oldest first: this model's lineage, and this model."""
    training = manifest.get("training", {})
    data = {key: training.get(key) for key in ("inputs", DIGESTS, "rows", "forget")}
    entry = {"id": manifest["id"], "created": manifest.get("created"), **data}
    return [*training.get("lineage", ()), {**entry, "optimizer": dict(manifest["optimizer"])}]


def input_digests(inputs: Sequence[str | Path | InputFile]) -> list[str]:
    """Digests that identify a source's `inputs`, also under other names. Raises DataError.

    A data set's digest covers everything in it; for files see `file_digests`. Files of which only some rows
    are read have none.
    """
    folders = [each for each in inputs if not isinstance(each, InputFile)]
    files = [
        each
        for each in inputs
        if isinstance(each, InputFile)
        and (each.chosen_rows is None or each.chosen_rows.count() == each.chosen_rows.rows)
    ]
    return [*(manifest_of(folder).digest for folder in folders), *file_digests(files)]


def seen_rows(manifest: Mapping[str, Any], digests: Sequence[str]) -> str | None:
    """How a model has seen inputs with these digests: "trained" or "calibrated" on them.

    None if it is not known to have seen any of them, for instance if its manifest has no digests.
    """
    training = manifest.get("training", {})
    trained = {
        digest for each in (training, *training.get("lineage", ())) for digest in each.get(DIGESTS) or ()
    }
    if not trained.isdisjoint(digests):
        return "trained"
    calibrated = manifest.get("calibrated", {}).get(DIGESTS, ())
    return "calibrated" if any(digest in calibrated for digest in digests) else None


def load_optimizer(path: Path) -> Optimizer:
    """The optimizer of the model in the folder `path`. Raises ModelError as `read_manifest` does."""
    return ManifestEntries.model_validate(read_manifest(path)).optimizer.optimizer


def manifest_text(manifest: Mapping[str, Any]) -> bytes:
    """The content of the manifest's file."""
    return orjson.dumps(manifest, option=orjson.OPT_INDENT_2)


def read_manifest(path: Path, folder: int | None = None) -> dict[str, Any]:
    """The manifest in the model folder `path`; `folder`: the folder's descriptor, if it is open.

    Raises ModelError if it is missing or damaged, or not that of a model of this format version.
    """
    if folder is None and not path.exists():
        raise ModelError(f"{path}: there is no such model folder; `ctr train … --model {path}` makes one.")
    try:
        place, opener = (
            (path / MANIFEST, None) if folder is None else (MANIFEST, partial(os.open, dir_fd=folder))
        )
        with open(place, "rb", opener=opener) as file:
            manifest = orjson.loads(file.read())
        kind, version = manifest["format"], manifest["format_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{path}: {MANIFEST} is missing or damaged, so the model is incomplete; train it again."
        ) from error
    if kind != FORMAT:
        raise ModelError(f"{path}: is a {kind}, not a model; `ctr train … --model` makes one.")
    if version != FORMAT_VERSION:
        raise ModelError(
            f"{path}: the model has format version {version}, this program reads version {FORMAT_VERSION}; "
            "use the version of ctr that wrote it, or train again."
        )
    try:
        ManifestEntries.model_validate(manifest)
    except ValidationError as error:
        raise ModelError(
            f"{path}: {MANIFEST} is damaged ({first_problem(error)}); train the model again."
        ) from error
    return dict(manifest)


_TRIES = 20
_Loaded = TypeVar("_Loaded")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """An open model folder; it can still be read after another folder has replaced it."""

    path: Path
    handle: int
    manifest: dict[str, Any]

    def content(self, name: str) -> mmap.mmap:
        """The content of a file, mapped and then verified in memory, so that a later change has no effect."""
        try:
            with open(name, "rb", opener=partial(os.open, dir_fd=self.handle)) as file:
                # Nothing writes to it, but Numba would compile its kernels again for read-only arrays.
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except PermissionError as error:
            raise ModelError(f"{self.path}: {name} may not be read by this user ({error}).") from error
        except (OSError, ValueError) as error:  # ValueError: it is empty
            raise ModelError(
                f"{self.path}: {name} cannot be read ({error}); the model is incomplete, train it again."
            ) from error
        actual, saved = hashlib.sha256(content).hexdigest(), str(self.manifest["sha256"].get(name))
        if actual != saved:
            raise ModelError(
                f"{self.path}: {name} is not the file that was saved (SHA-256 {actual[:12]} instead of "
                f"{saved[:12]}); restore it or train again."
            )
        return content

    def require(self, manifest: Mapping[str, Any]) -> None:
        """Raises ModelError unless its files are those of the model with this manifest."""
        if self.manifest["sha256"] != manifest["sha256"]:
            raise ModelError(
                f"{self.path}: another model, {self.manifest['id']}, has replaced {manifest['id']} since that"
                " was loaded; load it again."
            )

    @property
    def is_at_its_path(self) -> bool:
        """True if no other folder has replaced it."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.handle))
        except OSError:
            return False


def load_whole(path: Path, load: Callable[[ModelFolder], _Loaded]) -> _Loaded:
    """The result of `load` for one whole model in `path`, even if another replaces it meanwhile."""
    for _ in range(_TRIES):
        with ExitStack() as opened:
            try:
                handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            except OSError as error:
                read_manifest(path)  # its error says more
                raise ModelError(f"{path}: cannot be read ({error.strerror}).") from error
            opened.callback(os.close, handle)
            folder = ModelFolder(path, handle, {})
            try:
                return load(replace(folder, manifest=read_manifest(path, handle)))
            except ModelError:
                if folder.is_at_its_path:
                    raise
    raise ModelError(
        f"{path}: another model replaced it during each of {_TRIES} attempts to load it; load it when nobody"
        " writes there."
    )
