"""Sends models to each machine of a Spark cluster once, where they are mapped into memory."""

from __future__ import annotations

import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, finalize

from ctr.model import Model, load_model

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_sent: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()


def distribute(session: SparkSession, model: Model) -> str:
    """Send a model to all machines of a session, unless it was sent before; returns its name there."""
    name = f"ctr-model-{model.id}"
    sent = _sent.setdefault(session, set())
    if name not in sent:
        # Exists as long as the session, as later executors fetch it, too.
        folder = Path(tempfile.mkdtemp(prefix="ctr-spark-"))
        finalize(session, shutil.rmtree, folder, ignore_errors=True)
        model.save(folder / name)
        archive = shutil.make_archive(str(folder / f"{name}-files"), "zip", folder / name)
        shutil.rmtree(folder / name)
        session.addArtifacts(f"{archive}#{name}", archive=True)
        sent.add(name)
    return name


@lru_cache(maxsize=2)
def load_distributed(name: str) -> Model:
    """In a task: the model of this name, which all tasks of the Python process share."""
    from pyspark import SparkFiles

    return load_model(Path(SparkFiles.getRootDirectory(), name))
