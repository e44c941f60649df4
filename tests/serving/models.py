"""Models of 64 MB, and rows for them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from ctr.features import load_spec
from ctr.model import LinearModel, Model

BITS, WEIGHTS = 24, 8_000_000
"""64 MB of slots and weights."""


def rows_of(number: int) -> list[dict[str, object]]:
    draw = random.Random(5)
    return [
        {f"I{i}": draw.randint(0, 3_000) for i in range(1, 14)}
        | {f"C{i}": f"{draw.getrandbits(32):08x}" for i in range(1, 27)}
        for _ in range(number)
    ]


def save_models(folder: Path) -> list[Path]:
    """Three of the same size and transform."""
    spec = load_spec("criteo").model_copy(update={"bits": BITS})
    paths = []
    for number in range(3):
        draw = np.random.default_rng(number)
        slots = np.sort(draw.choice(1 << BITS, WEIGHTS, replace=False)).astype(np.uint32)
        weights = draw.normal(0, 0.1, WEIGHTS).astype(np.float32)
        state = (slots[:10], np.ones((10, 2), np.float32))
        facts = {
            "optimizer": {"name": "ftrl", "alpha": 0.1, "beta": 1.0, "l1": 0.0, "l2": 0.0, "passes": 1.0}
        }
        model = Model.of(spec, LinearModel.of_weights(slots, weights), facts, state=state)
        paths.append(folder / f"model-{number}")
        model.save(paths[-1])
    return paths
