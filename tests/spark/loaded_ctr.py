"""`python -m tests.spark.loaded_ctr workers FILE`: a fork server that has loaded PySpark, too."""

from __future__ import annotations

from importlib import import_module

from ctr.cli.app import main
from tests.loaded_ctr import load

# With pandas, which PySpark imports before it runs a function on Arrow batches.
_MODULES = ("pandas", "pyspark.sql", "pyspark.sql.pandas.serializers", "ctr.engines.spark", "ctr.jobs")

if __name__ == "__main__":
    load()
    for module in _MODULES:
        import_module(module)
    main()
