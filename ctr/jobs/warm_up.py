"""`compile_training`: the kernels of training compiled before they are needed, beside those that read."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

import numpy as np

from ctr.features import Batch, FeatureSpec
from ctr.features.batches import is_compiled, slot_dtype
from ctr.learn import Admission, warm_up
from ctr.optimizers import Optimizer


def compile_training(spec: FeatureSpec, optimizer: Optimizer) -> None:
    """Compile, or load from the cache, what learning in memory from examples of this spec needs."""
    slots = np.array([0, 1], slot_dtype(spec.bits))
    values = np.ones(2, np.float32) if spec.has_values else None
    sample = Batch(np.array([0, 1, 2]), slots, values, np.array([0, 1], np.float32))
    warm_up(sample, spec.bits, optimizer, 1.0, Admission(1.0, 0))


def compile_training_beside(spec: FeatureSpec, optimizer: Optimizer) -> None:
    """Have a process of its own do so, where nothing is compiled yet and a core is free.

    Whoever needs one of its kernels waits until that is in the cache.
    """
    if is_compiled() or len(os.sched_getaffinity(0)) == 1 or threading.active_count() > 1:
        return
    from multiprocessing import get_context  # for a first run alone

    get_context("fork").Process(target=_compile_quietly, args=(spec, optimizer), daemon=True).start()


def _compile_quietly(spec: FeatureSpec, optimizer: Optimizer) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with suppress(Exception):  # the process that trains meets it, too
        compile_training(spec, optimizer)
