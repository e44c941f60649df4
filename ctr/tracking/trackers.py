"""`Tracker`: where the summary of a job is kept; `open_trackers` finds them by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


class Tracker(Protocol):
    """Keeps summaries of jobs."""

    def keep(self, summary: Mapping[str, Any]) -> str:
        """Keep the summary of a job, JSON values only; return where it is now, for people.

        Raises DataError when that fails.
        """


def open_trackers(targets: Sequence[str]) -> list[Tracker]:
    """The trackers of `ctr train --track`: `mlflow`, or a folder.

    Raises DataError, before any work is done, for one that will not be able to keep anything.
    """
    opened: list[Tracker] = []
    for target in targets:
        if target == "mlflow":
            from ctr.tracking.mlflow_tracker import MlflowTracker

            opened.append(MlflowTracker())
        else:
            from ctr.tracking.runs import RunFolder

            opened.append(RunFolder(Path(target)))
    return opened
