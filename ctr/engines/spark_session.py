"""The Spark session that an engine uses, and what is wrong where there is none, in one line."""

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

from ctr.errors import CtrError, EngineError, named

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LEAST_JAVA = 17
_CONNECT_S = 5.0


def spark_session(master: str | None) -> SparkSession:
    """The Spark session of this program, or a new one of `master`, which ends with the program.

    `master`: such as `local[4]`, `spark://host:7077`, `yarn` or `k8s://…`; None: as `spark-submit` has it, or
    else all cores of this machine. Raises EngineError without PySpark, Java, or an answer from the master.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise EngineError("PySpark is not installed; install it with `pip install 'ctr[spark]'`.") from None
    from pyspark.sql.utils import is_remote

    if is_remote():
        raise EngineError(
            "this program's Spark session is one of Spark Connect, which runs no workers and tells nothing of"
            " its tasks; use a session of the cluster itself, as spark-submit does."
        )
    if (active := SparkSession.getActiveSession()) is not None:
        of_session = active.conf.get("spark.master", None)
        if master not in (None, of_session):
            raise EngineError(
                f"this program has a Spark session with the master {of_session} already; leave out "
                f"{named('master')}, or stop that session."
            )
        return active
    _require_java()
    _require_answer(master or "")
    builder = SparkSession.builder.appName("ctr").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.log.level", "ERROR")
    if master is not None:  # else Spark has it from spark-submit or spark-defaults.conf, or takes all cores
        builder = builder.master(master)
    if (master or "local").startswith("local") and "PYSPARK_GATEWAY_PORT" not in os.environ:
        # Executors of this machine run what runs here.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.ui.enabled", "false")
    with spark_errors(), _quiet():
        session = builder.getOrCreate()
    atexit.register(session.stop)
    return session


@contextmanager
def spark_errors() -> Iterator[None]:
    """Errors of Spark and of its tasks as EngineErrors of one line."""
    try:
        yield
    except CtrError:
        raise
    except Exception as error:
        raise EngineError(_reason(str(error))) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """What Java prints goes to a file of its own: a dozen lines about nothing, at every start.

    It stays there as long as Java runs. Where Java does not even start, its last line is the reason.
    """
    if os.environ.get("SPARK_LOG_TO_STDERR"):
        yield
        return
    with tempfile.TemporaryFile() as printed:
        own = os.dup(2)
        try:
            sys.stderr.flush()
            os.dup2(printed.fileno(), 2)
            yield
        except Exception as error:
            printed.seek(0)
            lines = printed.read().decode(errors="replace").strip().splitlines()
            if lines and "JAVA_GATEWAY_EXITED" in str(error):
                raise EngineError(f"Spark could not be started: {_last_said(lines)}") from error
            raise
        finally:
            os.dup2(own, 2)
            os.close(own)


def _last_said(lines: list[str]) -> str:
    """The line that tells most of why Java has ended."""
    errors = [line for line in lines if re.search(r"\b(Error|Exception)\b", line)]
    return f"{(errors or lines)[0].strip():.400}"


def _require_java() -> None:
    """Raises EngineError unless there is a Java that Spark 4 runs on."""
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
        what = printed.splitlines()[0] if printed else "of no known version"
        raise EngineError(f"Spark needs Java {_LEAST_JAVA} or newer, and {java} is {what}; {remedy}")


def _require_answer(master: str) -> None:
    """Raises EngineError where nobody answers at `spark://host:port`, which Spark would try for a minute."""
    if not master.startswith("spark://"):
        return
    for host, port in re.findall(r"([^/,:]+):(\d+)", master.removeprefix("spark://")):
        with suppress(OSError), socket.create_connection((host, int(port)), _CONNECT_S):
            return
    raise EngineError(f"{master}: no Spark master answers there; check host and port, or start one.")


def _reason(text: str) -> str:
    """What went wrong, from the many lines that Spark says."""
    if "PYTHON_VERSION_MISMATCH" in text or "different minor version" in text:
        return (
            "the Python of Spark's executors is another version than this one; set PYSPARK_PYTHON to the"
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
