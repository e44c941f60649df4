"""Where tasks and workers of a job run: in processes on this machine, or on the executors of a cluster.

An engine is all that differs between them. What tasks and workers do is the same everywhere.
"""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.engines.engine import DeadWorker, Engine, WorkerGroup
    from ctr.engines.forking import fork_server, serve
    from ctr.engines.opening import open_engine
    from ctr.engines.processes import Processes
    from ctr.engines.spark import SparkEngine
    from ctr.engines.spark_tasks import leave_out_of_collections
    from ctr.engines.worker_processes import WorkerProcesses

__getattr__ = lazy_package(__name__, __file__)
