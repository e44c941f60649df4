"""The logs of jobs, for what is served while it is trained."""

from tests.ctr.distributed_jobs import job_log, job_spec

__all__ = ["job_log", "job_spec"]
