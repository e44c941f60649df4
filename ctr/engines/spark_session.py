"""The Spark session of an engine, and one-line errors of Spark."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ctr.errors import CtrError, EngineError, named

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LEAST_JAVA = 17
_CONNECT_S = 5.0


def spark_session(master: str | None) -> SparkSession:
    """The Spark session of this program, or a new one of `master`, which ends with the program.

    `master`: such as `local[4]`, `spark://host:7077`, `yarn` or `k8s://…`; None: that of `spark-submit`, or
    all cores of this machine. Raises EngineError without PySpark, Java, or an answer from the master.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise EngineError("PySpark is not installed; install it with `pip install 'ctr[spark]'`.") from None
    from pyspark.sql.utils import is_remote

    if is_remote():
        raise EngineError(
            "this program's Spark session uses Spark Connect, which cannot run workers; use a session of the"
            " cluster itself, as spark-submit does."
        )
    if (active := SparkSession.getActiveSession()) is not None:
        active_master = active.conf.get("spark.master", None)
        if master not in (None, active_master):
            raise EngineError(
                f"this program already has a Spark session with the master {active_master}; leave out "
                f"{named('master')}, or stop that session."
            )
        return active
    _require_java()
    _require_answer(master or "")
    builder = SparkSession.builder.appName("ctr").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.log.level", "ERROR")
    if master is not None:  # else from spark-submit or spark-defaults.conf, or all cores
        builder = builder.master(master)
    if (master or "local").startswith("local") and "PYSPARK_GATEWAY_PORT" not in os.environ:
        # Executors of this machine use the same Python.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.ui.enabled", "false")
    with spark_errors(), _quiet():
        session = builder.getOrCreate()
    atexit.register(session.stop)
    return session


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raise errors of Spark and of its tasks as EngineErrors of one line."""
    try:
        yield
    except CtrError:
        raise
    except Exception as error:
        raise EngineError(_reason(str(error))) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Redirect Java's output to a file, as it prints a dozen irrelevant lines at every start.

    This lasts as long as Java runs. If Java does not start, its output has the reason.
    """
    if os.environ.get("SPARK_LOG_TO_STDERR"):
        yield
        return
    with tempfile.TemporaryFile() as output:
        stderr = os.dup(2)
        try:
            sys.stderr.flush()
            os.dup2(output.fileno(), 2)
            yield
        except Exception as error:
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines()
            if lines and "JAVA_GATEWAY_EXITED" in str(error):
                errors = [line for line in lines if re.search(r"\b(Error|Exception)\b", line)]
                reason = (errors or lines)[0].strip()
                raise EngineError(f"Spark could not be started: {reason:.400}") from error
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def _require_java() -> None:
    """Raise EngineError unless there is a Java for Spark 4."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    remedy = (
        f"install Java {_LEAST_JAVA}, such as Debian's openjdk-{_LEAST_JAVA}-jre-headless, or set JAVA_HOME."
    )
    if java is None:
        raise EngineError(f"Spark needs Java, and there is none on PATH; {remedy}")
    try:
        printed = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError) as error:
        raise EngineError(f"Spark needs Java, and {java} cannot be run ({error}); {remedy}") from None
    version = re.search(r'version "(\d+)', printed)
    if version is None or int(version[1]) < _LEAST_JAVA:
        version_line = printed.splitlines()[0] if printed else "of unknown version"
        raise EngineError(f"Spark needs Java {_LEAST_JAVA} or newer, and {java} is {version_line}; {remedy}")


def _require_answer(master: str) -> None:
    """Raise EngineError if nobody answers at `spark://…` or `k8s://…`, which Spark would try for a minute."""
    scheme, _, place = master.partition("://")
    addresses: list[tuple[str, int]] = []
    if scheme == "spark":
        addresses = [(host, int(port)) for host, port in re.findall(r"([^/,:]+):(\d+)", place)]
        who, remedy = "Spark master", "check host and port, or start one"
    elif scheme == "k8s":
        with suppress(ValueError):
            api = urlsplit(place if "://" in place else f"https://{place}")
            addresses = [(api.hostname or place, api.port or (80 if api.scheme == "http" else 443))]
        who, remedy = "Kubernetes API server", "`kubectl cluster-info` prints its URL"
    else:
        return
    for address in addresses:
        with suppress(OSError), socket.create_connection(address, _CONNECT_S):
            return
    raise EngineError(f"{master}: no {who} answers there; {remedy}.")


def _reason(text: str) -> str:
    """The reason of a failure, from the many lines of Spark's error."""
    if "PYTHON_VERSION_MISMATCH" in text or "different minor version" in text:
        return (
            "Spark's executors run another version of Python than this program; set PYSPARK_PYTHON to the"
            " same on all machines."
        )
    if "InvalidClassException" in text or "All masters are unresponsive" in text:
        import pyspark

        return (
            f"the cluster seems to run another version of Spark than PySpark {pyspark.__version__} here;"
            " install the PySpark of the cluster's version."
        )
    if "PACKAGE_NOT_INSTALLED" in text:
        return "Spark needs pandas and PyArrow; install them with `pip install 'ctr[spark]'`."
    if match := re.search(r"No module named '([\w.]+)'", text):
        return (
            f"Spark's executors cannot import {match[1]!r}; install ctr on all machines, in the Python that"
            " PYSPARK_PYTHON names."
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b.*:", line)]
    return f"Spark could not run the job: {(raised or lines or ['it gave no reason'])[-1]:.400}"
