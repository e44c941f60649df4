"""Running a server: which versions it serves, to whom, in how many processes, and what can be seen of it."""

from ctr.api.operations.access import IS_ADMIN, Access, Tokens
from ctr.api.operations.drift import Drift
from ctr.api.operations.metrics import CONTENT_TYPE, SHARED_FOLDER, ServingMetrics, route_path
from ctr.api.operations.processes import run_processes
from ctr.api.operations.sources import (
    CANARY,
    SHADOW,
    FolderSource,
    MlflowSource,
    ModelSource,
    RegistrySource,
    StoreSource,
)
from ctr.api.operations.stand_in import stand_in_of
from ctr.api.operations.versions import Versions
