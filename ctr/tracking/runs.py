"""`RunFolder`: a folder with a JSON file for every job that was tracked there; `read_runs` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from ctr.errors import DataError
from ctr.outputs import replace_file, require_no_part, require_writable

_FORMAT: Final = "ctr run"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Run:
    """A job that was tracked."""

    name: str
    """Its file's, without the suffix: when it ended, and the model's id."""
    summary: Mapping[str, Any]
    """What `ctr train --json` writes, with `created`, `inputs` and `holdout_inputs`."""

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Those of the hold-out, or without one of progressive validation, or of training."""
        parts = (self.summary.get(part) for part in ("holdout", "progressive", "training"))
        return next(part for part in parts if part)


class RunFolder:
    """Keeps each summary in a file of its own."""

    def __init__(self, folder: Path) -> None:
        """Make the folder. Raises DataError when files cannot be made there, or it is a model or data set."""
        require_no_part(folder / "run.json")
        require_writable(folder / "run.json")
        self._folder = folder

    def keep(self, summary: Mapping[str, Any]) -> str:
        """Write the file: whole or not at all."""
        now = datetime.now(UTC)
        run = {"format": _FORMAT, "format_version": _VERSION, "created": now.isoformat(), **summary}
        # With microseconds: several jobs may train the same model.
        file = self._folder / f"{now:%Y%m%d-%H%M%S-%f}-{summary['model']}.json"
        try:
            with replace_file(file) as draft:
                draft.write_bytes(orjson.dumps(run, option=orjson.OPT_INDENT_2))
        except OSError as error:
            raise DataError(f"{file}: the run could not be kept ({error}).") from error
        return str(file)


def read_runs(folder: Path) -> list[Run]:
    """The runs in the folder, oldest first.

    Raises DataError when there is no such folder, and for a JSON file that is not a run of this version.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder; `ctr train … --track {folder}` makes one.")
    return [_read(file) for file in sorted(folder.glob("[!.]*.json"))]


def _read(file: Path) -> Run:
    try:
        summary = orjson.loads(file.read_bytes())
        kind, version = summary["format"], summary["format_version"]
        if (kind, version) == (_FORMAT, _VERSION):
            run = Run(file.stem, summary)
            # What every list shows.
            _ = summary["created"], summary["settings"].items(), run.metrics["logloss"]
            return run
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{file}: is no run, or a damaged one; move it elsewhere.") from error
    raise DataError(
        f"{file}: is a {kind!r} of version {version}, not a {_FORMAT!r} of {_VERSION}; move it elsewhere."
    )
