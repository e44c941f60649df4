"""`Registry`: versions of models, and the labels by which servers find them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ctr.errors import ModelError, first_problem, path_of
from ctr.model import Model, load_model
from ctr.registry.storage import storage_of

_LABELS = "labels.json"
_MANIFEST = "manifest.json"
_STATE = "state.safetensors"  # only training needs it
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_VERSION = re.compile(r"[0-9a-f]{6,64}")
_MOST_EARLIER = 100
_FROZEN = ConfigDict(frozen=True, extra="forbid", strict=True)
_Id = Annotated[str, Field(pattern=f"^{_VERSION.pattern}$")]


class LabelEntry(BaseModel):
    """The version that a label points to."""

    model_config = _FROZEN

    version: _Id
    since: str
    """UTC, ISO 8601."""
    before: list[_Id] = []
    """Earlier versions, the latest first."""


class _Labels(BaseModel):
    """The content of `labels.json`."""

    model_config = _FROZEN

    format: str = "ctr model registry"
    format_version: Annotated[int, Field(ge=1, le=1)] = 1
    labels: dict[str, LabelEntry] = {}


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a registry."""

    id: str
    manifest: dict[str, Any]
    """Empty if it is damaged."""
    labels: tuple[str, ...]

    @property
    def created(self) -> str:
        """UTC, ISO 8601."""
        return str(self.manifest.get("created", ""))


class Registry:
    """A folder or URI with immutable versions, and labels that may change.

        versions/<model id>/    a model folder
        labels.json             the version of each label, and its earlier versions

    Versions appear whole or not at all, and `labels.json` is replaced atomically. Raises ModelError for
    missing or damaged files, and DataError as file systems behind URIs do.
    """

    def __init__(self, place: str | Path) -> None:
        path_of("place", place)
        self.place = str(place)
        self._storage = storage_of(self.place, _MANIFEST)

    def init(self) -> None:
        """Create the registry, wherever it is; an existing one is left alone."""
        self._storage.start()

    def require(self) -> None:
        """Raise ModelError if there is none; behind a URI it may also be one without versions."""
        self._storage.require()

    def require_startable(self) -> None:
        """Raise ModelError if `publish` would refuse to create the registry."""
        self._storage.require_startable()

    def labels(self, *required: str) -> dict[str, LabelEntry]:
        """All labels by name. Raises ModelError if a required one is missing."""
        content = self._storage.read(_LABELS)
        try:
            labels = {} if content is None else _Labels.model_validate_json(content).labels
        except ValidationError as error:
            raise ModelError(
                f"{self.place}/{_LABELS}: is damaged ({first_problem(error)}); restore it, or remove it and"
                " label the versions again."
            ) from None
        for label in required:
            if label not in labels:
                known = ", ".join(sorted(labels)) or "none"
                problem = f"there is no label {label} (labels: {known}); `ctr models label` creates it."
                raise ModelError(f"{self.place}: {problem}")
        return labels

    def versions(self) -> list[Version]:
        """All versions, the latest first."""
        labels = self.labels()
        versions = []
        for version, content in self._storage.versions().items():
            names = tuple(sorted(name for name, entry in labels.items() if entry.version == version))
            versions.append(Version(version, _manifest(content), names))
        return sorted(versions, key=lambda version: (version.created, version.id), reverse=True)

    def publish(self, model: Path, labels: Sequence[str] = ()) -> str:
        """Add the model in a folder, and point these labels to it; returns its id.

        An existing version is left alone. A missing registry is created, unless its folder or the parent
        folder is empty, which could be the mount point of a file system that is not mounted. Then this raises
        ModelError; `init` creates the registry in any case.
        """
        for label in labels:
            _require_label(label)
        loaded = load_model(model)  # verifies the files that serving reads
        files = [*map(str, loaded.manifest["sha256"]), _MANIFEST]
        self._storage.require_startable()
        self._storage.start()
        with self._storage.locked():
            if loaded.id not in self._storage.versions():
                self._storage.add(loaded.id, model, files)
        for label in labels:
            self.label(label, loaded.id)
        return loaded.id

    def label(self, label: str, version: str) -> None:
        """Point a label to a version."""
        _require_label(label)
        version = self.find(version)

        def point(entry: LabelEntry | None) -> LabelEntry:
            if entry is not None and entry.version == version:
                return entry
            before = [] if entry is None else [entry.version, *entry.before]
            return LabelEntry(version=version, since=_now(), before=before[:_MOST_EARLIER])

        self._change(label, point)

    def rollback(self, label: str) -> str:
        """Point a label to its previous version, which is returned."""
        self.labels(label)  # raises before a lock file is created in a missing registry
        existing = set(self._storage.versions())

        def back(entry: LabelEntry | None) -> LabelEntry:
            entry = entry or self.labels(label)[label]
            first = next((k for k, version in enumerate(entry.before) if version in existing), None)
            if first is None:
                raise ModelError(
                    f"{self.place}: label {label} points to {entry.version} and has no earlier version; label"
                    " another version."
                )
            return LabelEntry(version=entry.before[first], since=_now(), before=entry.before[first + 1 :])

        return self._change(label, back).version

    def remove(self, version: str) -> str:
        """Remove a version that no label points to; returns its id."""
        version = self.find(version)
        with self._storage.locked():
            labels = sorted(name for name, entry in self.labels().items() if entry.version == version)
            if labels:
                raise ModelError(
                    f"{self.place}: version {version} has the label {labels[0]}; point that to another"
                    " version first."
                )
            self._storage.remove(version, _MANIFEST)
        return version

    def find(self, version: str) -> str:
        """The id of a version, by a prefix of it or by a label."""
        labels, ids = self.labels(), self._storage.versions()
        if version in labels:
            version = labels[version].version
        matches = [id_ for id_ in ids if version and id_.startswith(version)]
        if len(matches) != 1:
            problem = "several versions have this prefix" if matches else "there is no such version"
            raise ModelError(f"{self.place}: {version}: {problem}; `ctr models list` shows all.")
        return matches[0]

    def version_of(self, label: str) -> str:
        """The version that a label points to."""
        return self.labels(label)[label].version

    def load(self, version: str) -> Model:
        """The model of a version, by its full id."""
        content = self._storage.versions().get(version)
        if content is None:
            raise ModelError(f"{self.place}: there is no version {version}; was it removed?")
        manifest = _manifest(content)
        if not manifest:
            raise ModelError(
                f"{self.place}: the {_MANIFEST} of version {version} is damaged; point its labels to another"
                " version, and remove it."
            )
        files = [name for name in manifest.get("sha256", {}) if name != _STATE]
        return load_model(self._storage.fetched(version, [*files, _MANIFEST]))

    def _change(self, label: str, change: Callable[[LabelEntry | None], LabelEntry]) -> LabelEntry:
        with self._storage.locked():
            labels = self.labels()
            entry = change(labels.get(label))
            content = _Labels(labels={**labels, label: entry}).model_dump_json(indent=2)
            self._storage.write(_LABELS, content.encode() + b"\n")
        return entry


def parse_place(text: str) -> tuple[str, list[str]]:
    """The place and the labels of `REGISTRY[@label[,label]]`. Raises ModelError."""
    place, at, labels = text.rpartition("@")
    if not at or "/" in labels:
        return text, []
    for label in labels.split(","):
        _require_label(label)
    return place, labels.split(",")


def _manifest(content: bytes) -> dict[str, Any]:
    """Empty if it is damaged."""
    with suppress(orjson.JSONDecodeError):
        manifest = orjson.loads(content)
        if isinstance(manifest, dict):
            return manifest
    return {}


def _require_label(label: str) -> None:
    if not _LABEL.fullmatch(label) or _VERSION.fullmatch(label):
        raise ModelError(
            f"{label!r} is not a label: use a name such as stable, of letters, digits, -, _ and ., that is"
            " not a version's id."
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
