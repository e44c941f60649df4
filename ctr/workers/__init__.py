"""A worker of a job over Redis: its job's description, SSP and BSP workers, their reports."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.workers.data_plan import DataPlan, shard_chunks_for
    from ctr.workers.description import (
        CONSISTENCY,
        Consistency,
        JobDescription,
        absolute,
        filters_for,
        input_bytes,
        input_digest,
        learnt_text,
    )
    from ctr.workers.report import (
        EARLIER,
        PreparedUpdate,
        WorkerReport,
        collect,
        host,
        host_of,
        is_of_work,
        read_failure,
        read_stalls,
        skipped_rows,
    )
    from ctr.workers.timing import Heartbeat
    from ctr.workers.worker import FAILURE_REPORT_S, take_part, warm_up_worker

__getattr__ = lazy_package(__name__, __file__)
