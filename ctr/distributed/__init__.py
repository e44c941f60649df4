"""A job over Redis as a whole: coordinator, pauses, checkpoints while it runs, progress and status."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.distributed.checkpointing import CheckpointSettings
    from ctr.distributed.coordinator import ClusterSummary, Coordinator
    from ctr.distributed.position import JobPosition
    from ctr.distributed.run import StoreSettings, train_distributed
    from ctr.distributed.status import JobStatus, WorkerStatus, job_status, needed_reports, status_to_json

__getattr__ = lazy_package(__name__, __file__)
