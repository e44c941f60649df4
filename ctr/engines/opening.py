"""`open_engine`: the one function that knows all engines."""

from __future__ import annotations

from ctr.engines.engine import Engine
from ctr.engines.processes import Processes


def open_engine(name: str | None, master: str | None = None) -> Engine:
    """The engine of this name, `processes` or `spark`; None: `processes`.

    `master`: the URL of a Spark cluster. Raises EngineError if Spark cannot be started.
    """
    if name == "spark":
        from ctr.engines.spark import SparkEngine

        return SparkEngine(master)
    return Processes()
