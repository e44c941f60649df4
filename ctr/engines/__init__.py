"""Engines run the tasks and workers of a job: in processes of this machine, or on a cluster.

What tasks and workers do does not depend on the engine.
"""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.engines.engine import DeadWorker, Engine, Failure, WorkerGroup
    from ctr.engines.forking import fork_server, serve
    from ctr.engines.opening import open_engine
    from ctr.engines.processes import Processes
    from ctr.engines.spark import SparkEngine
    from ctr.engines.spark_tasks import leave_out_of_collections
    from ctr.engines.worker_processes import WorkerProcesses

__getattr__ = lazy_package(__name__, __file__)
