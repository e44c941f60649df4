"""`onnx_bytes`: the scoring of hashed examples as an ONNX model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ctr.errors import DataError, named
from ctr.features import FeatureSpec
from ctr.packages import require_packages

if TYPE_CHECKING:
    import pyarrow as pa

    from ctr.model import Calibration, Model

_OPSET, _ML_OPSET, _IR = 17, 4, 9
"""Versions that onnxruntime 1.17 and later can run."""
_MOST_BYTES = (1 << 31) - (1 << 20)
"""Protocol Buffers have at most 2 GiB."""
_BYTES = 12  # a weight and its slot


def require_scorable(spec: FeatureSpec) -> None:
    """Raises DataError if features of `spec` depend on other rows, or `onnx` is not installed."""
    if spec.windows:
        raise DataError(
            f"window {spec.windows[0].name!r}: its features depend on earlier rows, which an ONNX model does "
            "not see; serve this model with `ctr serve`, or export the weights as parquet, csv or npz."
        )
    require_packages("an ONNX model", {"onnx": "onnx"})


def onnx_bytes(model: Model, weights: pa.Table) -> bytes:
    """A model with two inputs, `slots` int64[n, k] and `values` float32[n, k], and two outputs of n numbers.

    An example with fewer than k features is padded with the value 0, at any slot. The output `log_odds` is
    the sum of weights times values, `prediction` its probability, both after calibration. A slot without a
    weight counts as 0, so the file only has non-zero weights, whatever the bits. Raises DataError if there
    are too many weights for a file of this format.
    """
    from onnx import TensorProto, helper, numpy_helper

    slots = weights["slot"].to_numpy().astype(np.int64)
    if slots.size * _BYTES > _MOST_BYTES:
        raise DataError(
            f"{slots.size:,} weights are more than the 2 GiB of an ONNX file hold; train with "
            f"{named('l1')}, which makes weights 0."
        )
    look_up = helper.make_node(
        "LabelEncoder",
        ["slots"],
        ["weights"],
        domain="ai.onnx.ml",
        keys_tensor=numpy_helper.from_array(slots, "keys"),
        values_tensor=numpy_helper.from_array(weights["weight"].to_numpy(), "weights"),
        default_tensor=numpy_helper.from_array(np.zeros(1, np.float32), "none"),
    )
    constants = {"last": np.array([1], np.int64)}
    nodes = [
        look_up,
        helper.make_node("Mul", ["weights", "values"], ["contributions"]),
        helper.make_node("ReduceSum", ["contributions", "last"], ["margins"], keepdims=0),
    ]
    if model.calibration is None:
        nodes.append(helper.make_node("Identity", ["margins"], ["log_odds"]))
    else:
        calibration_nodes, points = _calibrated(model.calibration)
        nodes, constants = nodes + calibration_nodes, constants | points
    nodes.append(helper.make_node("Sigmoid", ["log_odds"], ["prediction"]))
    inputs = [("slots", TensorProto.INT64), ("values", TensorProto.FLOAT)]
    graph = helper.make_graph(
        nodes,
        "ctr",
        [helper.make_tensor_value_info(name, kind, ["n", "k"]) for name, kind in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in ("log_odds", "prediction")],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("ai.onnx.ml", _ML_OPSET)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=_IR, producer_name="ctr")
    properties = {"ctr.model": model.id, "ctr.features": model.spec.to_yaml()}
    helper.set_model_props(proto, properties | {"ctr.transform": model.spec.fingerprint})
    return bytes(proto.SerializeToString())


def _calibrated(calibration: Calibration) -> tuple[list[Any], dict[str, Any]]:
    """Nodes from `margins` to `log_odds`, with float64 in between, and their constants.

    The map is a sum over segments. Segment `i` contributes its slope times the distance of the margin from
    point `i`, at most up to point `i + 1`.
    """
    from onnx import TensorProto, helper

    x, y = calibration.margins, calibration.log_odds
    constants = {
        "starts": x[None, :-1],
        "widths": np.diff(x)[None, :],
        "slopes": (np.diff(y) / np.diff(x))[:, None],
        "zero": np.zeros(1),
        "first": x[:1],
        "end": x[-1:],
        "lowest": y[:1],
        "slope": np.array([calibration.slope]),
        "column": np.array([-1, 1], np.int64),
        "flat": np.array([-1], np.int64),
    }
    node = helper.make_node
    nodes = [
        node("Cast", ["margins"], ["wide"], to=TensorProto.DOUBLE),
        node("Reshape", ["wide", "column"], ["by_row"]),
        node("Sub", ["by_row", "starts"], ["past"]),
        node("Max", ["past", "zero"], ["past_start"]),
        node("Min", ["past_start", "widths"], ["within"]),
        node("MatMul", ["within", "slopes"], ["risen"]),
        node("Reshape", ["risen", "flat"], ["risen_by"]),
        node("Add", ["risen_by", "lowest"], ["between"]),
        node("Max", ["wide", "first"], ["not_below"]),
        node("Min", ["not_below", "end"], ["inside"]),
        node("Sub", ["wide", "inside"], ["beyond"]),
        node("Mul", ["beyond", "slope"], ["outside"]),
        node("Add", ["between", "outside"], ["mapped"]),
        node("Cast", ["mapped"], ["log_odds"], to=TensorProto.FLOAT),
    ]
    return nodes, constants
