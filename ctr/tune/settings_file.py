"""The file of settings that `ctr tune` writes and `ctr train --settings` reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from ctr.errors import DataError
from ctr.features.spec import FeatureSpec, is_shipped, unfitted_fingerprint
from ctr.outputs import replace_file

COMMAND = "train"
_VERSION = 1
_KEYS = {"command", "version", "spec", "options", "measured"}


@dataclass(frozen=True, slots=True)
class NamedSpec:
    """The feature spec that settings belong to."""

    path: str
    """Relative to the folder of the settings, or the name of a spec that ships; a data set stands for its."""
    transform: str
    """The fingerprint of the spec with the scales of the settings, before it learns from data."""

    @staticmethod
    def of(path: str | Path, spec: FeatureSpec, settings: Path) -> NamedSpec:
        """`spec`, which is at `path`, as the file `settings` names it; it has the scales of the settings."""
        if not is_shipped(path):
            path = os.path.relpath(Path(path).resolve(), settings.parent.resolve())
        return NamedSpec(str(path), unfitted_fingerprint(spec))

    def beside(self, settings: Path) -> str:
        """The spec's name or path for whoever has read this from the file `settings`."""
        return self.path if is_shipped(self.path) else os.path.normpath(settings.parent / self.path)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a file of settings says."""

    options: dict[str, Any]
    """Of `ctr train`, by their names."""
    spec: NamedSpec | None
    """None: the options suit any."""


def write_settings(path: Path, settings: Settings, measured: Mapping[str, object]) -> None:
    """Write options of `ctr train`, the spec that they belong to, and what was measured of them."""
    head = f"# Settings that `ctr tune` found: ctr {COMMAND} --settings {path.name} ...\n"
    entry: dict[str, object] = {"command": COMMAND, "version": _VERSION}
    if settings.spec is not None:
        entry["spec"] = asdict(settings.spec)
    entry |= {"options": settings.options, "measured": dict(measured)}
    with replace_file(path) as partial:
        partial.write_text(head + yaml.safe_dump(entry, sort_keys=False, allow_unicode=True), "utf-8")


def read_settings(path: Path) -> Settings:
    """What this file says.

    Raises DataError for another file, one for another command or version, and one with unknown keys.
    """
    try:
        entry = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise DataError(f"{path}: cannot be read as YAML ({' '.join(str(error).split())}).") from None
    if not (isinstance(entry, dict) and "command" in entry and isinstance(entry.get("options"), dict)):
        raise DataError(f"{path}: is no file of settings, which has `command` and `options`; see `ctr tune`.")
    if (command := entry.get("command")) != COMMAND:
        raise DataError(
            f"{path}: has settings for the command {command!r}, not for {COMMAND!r}: `ctr tune` writes those."
        )
    if (version := entry.get("version")) != _VERSION:
        raise DataError(f"{path}: is of version {version!r}; this ctr reads version {_VERSION}.")
    if unknown := [key for key in entry if key not in _KEYS]:
        raise DataError(f"{path}: does not know the key {unknown[0]!r}; it has {', '.join(sorted(_KEYS))}.")
    return Settings({str(name): value for name, value in entry["options"].items()}, _named_spec(path, entry))


def _named_spec(path: Path, entry: Mapping[str, Any]) -> NamedSpec | None:
    if "spec" not in entry:
        return None
    named = entry["spec"]
    keys = {"path", "transform"}
    if not (
        isinstance(named, dict) and named.keys() == keys and all(isinstance(named[k], str) for k in keys)
    ):
        raise DataError(
            f"{path}: `spec` is {named!r}, and needs the texts `path` and `transform`; leave it out for "
            "settings that suit any spec."
        )
    return NamedSpec(named["path"], named["transform"])
