"""`Tracker`: stores the summaries of jobs; `open_trackers` opens trackers by name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

from ctr.errors import DataError, named
from ctr.packages import require_packages
from ctr.tracking.runs import RunFolder, flat


class Tracker(Protocol):
    """Stores summaries of jobs."""

    def keep(self, summary: Mapping[str, Any]) -> str:
        """Store the summary of a job, JSON values only; returns where, for people to read.

        Raises DataError if that fails.
        """


def open_trackers(targets: Sequence[str]) -> list[Tracker]:
    """The trackers of `ctr train --track`, each `mlflow` or a folder.

    Raises DataError, before any work is done, if a tracker will not be able to store anything.
    """
    return [MlflowTracker() if target == "mlflow" else RunFolder(Path(target)) for target in targets]


_METRICS = ("logloss", "normalized_entropy", "auc", "calibration")


class MlflowTracker:
    """Stores each summary as a run in MLflow: settings as parameters, figures as metrics.

    MLFLOW_TRACKING_URI names the server, and MLFLOW_EXPERIMENT_NAME the experiment.
    """

    def __init__(self) -> None:
        """Raises DataError if MLflow is not installed, or does not answer."""
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # the default of 7 takes minutes
        require_packages(named("track", "mlflow"), {"mlflow": "mlflow"}, otherwise="; or name a folder")
        import mlflow

        self._mlflow = mlflow
        try:
            mlflow.MlflowClient().search_experiments(max_results=1)
        except Exception as error:
            raise self._failed("does not answer", error) from error

    def keep(self, summary: Mapping[str, Any]) -> str:
        """Log the run; returns its id."""
        settings = {**flat(summary["settings"]), "workers": summary["workers"], "store": summary["store"]}
        metrics = {
            f"{part}_{name}": summary[part][name]
            for part in ("progressive", "training", "holdout")
            if summary[part] is not None
            for name in _METRICS
        }
        figures = ("examples", "examples_per_second", "peak_memory_mb")  # the last is of a command alone
        metrics |= {name: summary[name] for name in figures if name in summary}
        try:
            with self._mlflow.start_run(run_name=summary["model"]) as run:
                self._mlflow.log_params(settings)
                self._mlflow.set_tags(
                    {
                        "model": summary["model"],
                        "saved_to": summary["saved_to"],
                        "inputs": " ".join(summary["inputs"]),
                    }
                )
                self._mlflow.log_metrics({k: float(v) for k, v in metrics.items() if isinstance(v, Real)})
                points = [("holdout", each["pass"], each) for each in summary["holdout_by_pass"]]
                days = enumerate(summary.get("days", ()), 1)
                points += [("next_day", day, each["holdout"]) for day, each in days if each["holdout"]]
                for what, step, each in points:
                    point = {f"{what}_{name}": each[name] for name in _METRICS if each[name] is not None}
                    self._mlflow.log_metrics(point, step=step)
        except Exception as error:
            raise self._failed("did not accept the run", error) from error
        return f"MLflow, run {run.info.run_id}"

    def _failed(self, what: str, error: Exception) -> DataError:
        where = self._mlflow.get_tracking_uri()
        return DataError(f"MLflow at {where} {what} ({reason_of(error)}); check MLFLOW_TRACKING_URI.")


def reason_of(error: Exception) -> str:
    """The root cause of an error in one line, below three libraries that repeat each other."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            reason = cause.strerror
        cause = cause.__cause__ or cause.__context__
    return reason.rstrip(".")
