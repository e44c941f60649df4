"""The board that coordinator and workers of a job share in Redis: leases, clocks, data shards, ranks."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.ps.board.job_board import JobBoard
    from ctr.ps.board.job_record import JobGoneError
    from ctr.ps.board.shard_queue import Affinity
    from ctr.ps.board.view import (
        JOB_FACTS,
        BoardView,
        Claim,
        ClockGate,
        Job,
        RankGate,
        WorkerView,
        job_of,
        read_reports,
        view_of,
        view_reads,
    )

__getattr__ = lazy_package(__name__, __file__)
