"""What a command runs, from its inputs to its result."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_face

if TYPE_CHECKING:
    from ctr.jobs.cost_model import (
        LEAST_ROUNDS,
        Bound,
        Costs,
        Estimate,
        Workload,
        assumptions,
        default_bits,
        estimate,
        variants,
    )
    from ctr.jobs.export import export_model
    from ctr.jobs.outcome import TrainOutcome
    from ctr.jobs.train import run_train_job
    from ctr.jobs.train_job import TrainJob

__all__ = [
    "LEAST_ROUNDS",
    "Bound",
    "Costs",
    "Estimate",
    "TrainJob",
    "TrainOutcome",
    "Workload",
    "assumptions",
    "default_bits",
    "estimate",
    "export_model",
    "run_train_job",
    "variants",
]

__getattr__ = lazy_face(
    __name__,
    {
        "cost_model": "Bound Costs Estimate LEAST_ROUNDS Workload assumptions default_bits estimate variants",
        "export": "export_model",
        "outcome": "TrainOutcome",
        "train": "run_train_job",
        "train_job": "TrainJob",
    },
)
