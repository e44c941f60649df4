"""`vw_bytes`: weights as a model file of Vowpal Wabbit, which scores hashed examples."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features import FeatureSpec

if TYPE_CHECKING:
    import pyarrow as pa

    from ctr.model import Calibration, Model

Slots64 = NDArray[np.uint64]
Float64 = NDArray[np.float64]

MOST_BITS = 30
"""VW allocates memory for all slots, 4 bytes each; with more bits, its files have wider indices."""
_VERSION = b"9.0.0\0"
_OPTIONS = b" --link logistic --noconstant --sgd\0"
"""`--noconstant`, as the bias is slot 0; `--sgd`: one number per slot."""
_CLIP = 50.0
"""VW clips log-odds to plus or minus this."""


def require_held(spec: FeatureSpec, calibration: Calibration | None) -> None:
    """Raises DataError if VW cannot score like a model with this spec and calibration."""
    if spec.bits > MOST_BITS:
        raise DataError(
            f"VW allocates memory for all slots: 2**{spec.bits} are too many, at most 2**{MOST_BITS} are "
            "possible; export the weights as onnx, parquet, csv or npz."
        )
    if calibration is not None and (calibration.margins.size > 1 or not spec.bias):
        raise DataError(
            "a VW model has no calibration, and only Platt's can be expressed by weights and bias; export as "
            "onnx, which supports any calibration."
        )


def vw_bytes(model: Model, weights: pa.Table) -> bytes:
    """A model for prediction only: a header, and the index and weight of each slot.

    In VW's text format, the features of an example are the numbers of their slots, without a namespace:
    `| 0 17:1 4711:2.5`. VW uses such names as indices directly.
    """
    slots = weights["slot"].to_numpy()
    numbers = weights["weight"].to_numpy().astype(np.float64)
    if model.calibration is not None:
        slots, numbers = _with_line(slots, numbers, model.calibration)
    pairs = np.empty(slots.size, [("index", "<u4"), ("weight", "<f4")])
    pairs["index"], pairs["weight"] = slots, numbers
    checked = [
        _number(1),
        b"\0",  # no name of the model
        b"m",
        struct.pack("<f", -_CLIP),
        struct.pack("<f", _CLIP),
        _number(model.spec.bits),
        *[_number(0)] * 3,  # no topics, n-grams or skips
        _number(len(_OPTIONS)),
        _OPTIONS,
    ]
    checksum = 0
    for part in checked:
        checksum = _murmur(part, checksum)
    for_prediction = b"\0"  # no optimizer state
    header = _number(len(_VERSION)) + _VERSION + b"".join(checked) + _number(4) + _number(checksum)
    return header + for_prediction + pairs.tobytes()


def _with_line(slots: Slots64, weights: Float64, line: Calibration) -> tuple[Slots64, Float64]:
    """Weights, including a bias, whose margins are those of the given weights mapped by `line`."""
    if not slots.size or slots[0] != 0:
        slots, weights = np.insert(slots, 0, 0), np.insert(weights, 0, 0.0)
    weights = weights * line.slope
    weights[0] += line.log_odds[0] - line.slope * line.margins[0]
    return slots, weights


def _number(value: int) -> bytes:
    return struct.pack("<I", value)


def _murmur(data: bytes, seed: int) -> int:
    """MurmurHash3 (32 bits, Austin Appleby), with which VW checks headers."""

    def scrambled(word: int) -> int:
        word = word * 0xCC9E2D51 & 0xFFFFFFFF
        return ((word << 15 | word >> 17) & 0xFFFFFFFF) * 0x1B873593 & 0xFFFFFFFF

    digest, whole = seed, len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        digest ^= scrambled(word)
        digest = ((digest << 13 | digest >> 19) * 5 + 0xE6546B64) & 0xFFFFFFFF
    if whole < len(data):
        digest ^= scrambled(int.from_bytes(data[whole:], "little"))
    digest ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        digest = (digest ^ digest >> shift) * factor & 0xFFFFFFFF
    return digest ^ digest >> 16
