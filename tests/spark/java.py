"""Options of Java for the many short programs of these tests."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

# Most of what a short program of Spark does is to load and verify classes, and to compile them.
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_DUMP = """
import sys
from pyspark import SparkContext
from pyspark.sql import SparkSession

for master in ("local[1]", "local-cluster[1,1,1024]"):
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.extraJavaOptions", sys.argv[1]).getOrCreate()
    session.range(2).mapInArrow(lambda batches: batches, "id long").collect()
    session.stop()
java = SparkContext._gateway.proc
java.stdin.close()
java.wait()
"""


@cache
def java_options() -> str:
    """For `JAVA_TOOL_OPTIONS`: quick compilation, and the classes of Spark from an archive."""
    # Java ignores an archive that does not suit it, and would print a warning.
    return f"{_QUICK} -XX:SharedArchiveFile={_archive()} -Xlog:disable"


def _archive() -> Path:
    """The archive of Spark's classes, beside the packages; made if there is none."""
    import pyspark

    java = subprocess.run(["java", "-version"], capture_output=True, check=True).stderr
    archive = Path(sys.prefix, f"spark-{pyspark.__version__}-{sha256(java).hexdigest()[:8]}.jsa")
    if not archive.exists():
        with TemporaryDirectory(dir=sys.prefix) as folder:
            made = Path(folder, archive.name)
            command = [sys.executable, "-c", _DUMP, f"{_QUICK} -XX:ArchiveClassesAtExit={made} -Xlog:disable"]
            env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
            subprocess.run(command, env=env, capture_output=True, check=True)
            made.replace(archive)
    return archive
