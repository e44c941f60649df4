"""The file of settings that `ctr tune` writes and `ctr train --settings` takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ctr.errors import DataError
from ctr.outputs import replace_file

COMMAND = "train"
_VERSION = 1
_KEYS = {"command", "version", "options", "measured"}


def write_settings(path: Path, options: Mapping[str, object], measured: Mapping[str, object]) -> None:
    """Write options of `ctr train` by their names, and what was measured of them."""
    head = f"# Settings that `ctr tune` found: ctr {COMMAND} --settings {path.name} ...\n"
    entry = {"command": COMMAND, "version": _VERSION, "options": dict(options), "measured": dict(measured)}
    with replace_file(path) as partial:
        partial.write_text(head + yaml.safe_dump(entry, sort_keys=False, allow_unicode=True), "utf-8")


def read_settings(path: Path) -> dict[str, Any]:
    """The options of `ctr train` in this file, by their names.

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
    return {str(name): value for name, value in entry["options"].items()}
