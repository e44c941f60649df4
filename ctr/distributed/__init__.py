"""A job whose parameters live in Redis: coordinator, SSP and BSP workers, the data plan, reports."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_face

if TYPE_CHECKING:
    from ctr.distributed.checkpointing import CheckpointSettings
    from ctr.distributed.coordinator import CoordinatedResult, Coordinator, Progress
    from ctr.distributed.position import JobPosition
    from ctr.distributed.run import DistributedResult, StoreSettings, train_distributed
    from ctr.distributed.status import JobStatus, WorkerStatus, job_status, needed_reports, status_to_json

__all__ = [
    "CheckpointSettings",
    "CoordinatedResult",
    "Coordinator",
    "DistributedResult",
    "JobPosition",
    "JobStatus",
    "Progress",
    "StoreSettings",
    "WorkerStatus",
    "job_status",
    "needed_reports",
    "status_to_json",
    "train_distributed",
]

__getattr__ = lazy_face(
    __name__,
    {
        "checkpointing": "CheckpointSettings",
        "coordinator": "CoordinatedResult Coordinator Progress",
        "position": "JobPosition",
        "run": "DistributedResult StoreSettings train_distributed",
        "status": "JobStatus WorkerStatus job_status needed_reports status_to_json",
    },
)
