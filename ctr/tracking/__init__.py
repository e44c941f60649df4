"""Summaries of jobs, stored and compared: in a folder of JSON files, or in MLflow."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.tracking.runs import Run, differing, flat, read_runs, run_of_days
    from ctr.tracking.trackers import Tracker, open_trackers, reason_of

__getattr__ = lazy_package(__name__, __file__)
