"""Models in MLflow: `log_model`, `save_model`, `load_model`, and the `python_function` flavour.

MLflow stores the model's own folder, so nothing is pickled.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr import __version__
from ctr.errors import CtrError, DataError
from ctr.features import FeatureSpec, batch_of
from ctr.features.spec import NumberField, columns_of
from ctr.model import Model, load_detached, read_manifest
from ctr.model import load_model as load_folder
from ctr.packages import require_packages
from ctr.tracking import reason_of

if TYPE_CHECKING:
    from mlflow.models import ModelSignature
    from mlflow.models.model import ModelInfo

_FLAVOUR = "ctr"
_MODEL = "model"
"""The folder of the model within the one that MLflow hands to `_load_pyfunc`."""


def log_model(
    model: Model | str | Path,
    name: str = "model",
    *,
    registered_model_name: str | None = None,
    **options: Any,
) -> ModelInfo:
    """Log a model, or the model in a folder, with the current run of MLflow; without one, MLflow starts one.

    `registered_model_name`: also make it the next version of that registered model. `options` of
    `mlflow.models.Model.log`, such as `metadata` and `tags`. Raises DataError if MLflow is missing or
    refuses.
    """
    mlflow = require_mlflow("ctr.mlflow.log_model")
    with reported(mlflow):
        return mlflow.models.Model.log(
            artifact_path=None,
            name=name,
            flavor=sys.modules[__name__],
            registered_model_name=registered_model_name,
            model=model,
            **options,
        )


def save_model(model: Model | str | Path, path: str | Path, mlflow_model: Any = None) -> None:
    """Write a model, or the model in a folder, as a new folder in MLflow's format.

    `mlflow_model`: its description, which is completed. Raises DataError if MLflow is missing or refuses.
    """
    mlflow = require_mlflow("ctr.mlflow.save_model")
    with _folder_of(model) as folder, reported(mlflow):
        loaded = load_folder(folder)
        description = mlflow_model or mlflow.models.Model()
        description.add_flavor(_FLAVOUR, data=f"data/{_MODEL}", id=loaded.id, ctr_version=__version__)
        mlflow.pyfunc.save_model(
            path=str(path),
            mlflow_model=description,
            loader_module=__name__,
            data_path=str(folder),
            signature=signature_of(loaded.spec),
            input_example=_example(loaded),
            pip_requirements=[f"ctr=={__version__}", "pandas"],
        )


def load_model(uri: str | Path) -> Model:
    """The model at a URI of MLflow: `models:/name@alias`, `models:/name/3`, `runs:/…`, or a path.

    Raises DataError if MLflow cannot find it, and ModelError if it is damaged.
    """
    mlflow = require_mlflow(str(uri))
    with tempfile.TemporaryDirectory(prefix="ctr-mlflow-") as folder:
        with reported(mlflow):
            place = Path(mlflow.artifacts.download_artifacts(artifact_uri=str(uri), dst_path=folder))
        return load_detached(folder_within(place, str(uri)))


def folder_within(place: Path, uri: str) -> Path:
    """The model's own folder in a folder of MLflow. Raises DataError for another flavour."""
    from mlflow.models import Model as Description

    try:
        flavours = Description.load(str(place)).flavors
    except Exception as error:
        raise DataError(f"{uri}: is not a model of MLflow ({reason_of(error)}).") from error
    if _FLAVOUR not in flavours:
        raise DataError(
            f"{uri}: is a model of {', '.join(sorted(flavours)) or 'no flavour'}; log models of ctr with"
            " `ctr.mlflow.log_model`."
        )
    return place / str(flavours[_FLAVOUR]["data"])


def require_mlflow(what: str) -> Any:
    """The module. Raises DataError if it is not installed."""
    require_packages(what, {"mlflow": "mlflow", "pandas": "pandas"})
    import mlflow
    import mlflow.pyfunc

    return mlflow


@contextmanager
def reported(mlflow: Any) -> Iterator[None]:
    """Raise errors of MLflow as DataError of one line."""
    try:
        yield
    except CtrError:
        raise
    except Exception as error:
        where = mlflow.get_tracking_uri()
        raise DataError(f"MLflow at {where}: {reason_of(error)}; see MLFLOW_TRACKING_URI.") from error


@contextmanager
def _folder_of(model: Model | str | Path) -> Iterator[Path]:
    """A folder with the name `_MODEL`, as MLflow keeps the name."""
    with tempfile.TemporaryDirectory(prefix="ctr-mlflow-") as place:
        folder = Path(place, _MODEL)
        if isinstance(model, Model):
            model.save(folder)
        else:
            read_manifest(Path(model))  # raises if it is not a model
            shutil.copytree(model, folder)
        yield folder


def signature_of(spec: FeatureSpec) -> ModelSignature:
    """The columns that MLflow checks before it predicts.

    Every column may be missing. A column of numbers must hold numbers; others may hold whatever the training
    data may hold: text, whole numbers, lists.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema, TensorSpec
    from mlflow.types.schema import AnyType

    numbers = _numbers_of(spec)
    inputs = [
        ColSpec(DataType.double if name in numbers else AnyType(), name, required=False)
        for name in _columns_of(spec)
    ]
    return ModelSignature(Schema(inputs), Schema([TensorSpec(np.dtype(np.float32), (-1,))]))


def _columns_of(spec: FeatureSpec) -> Sequence[str]:
    return spec.columns or ("features",)  # of libsvm and VW


def _numbers_of(spec: FeatureSpec) -> set[str]:
    """Columns that are only read as numbers."""
    numbers, others = set[str](), set[str]()
    for field in spec.all_fields:
        (numbers if isinstance(field, NumberField) else others).update(columns_of(field))
    return numbers - others


def _example(model: Model) -> Any:
    """A frame with the first rows that are stored with the model; None without any."""
    import pandas as pd

    if model.examples is None:
        return None
    numbers = _numbers_of(model.spec)
    rows = [
        {name: float(value) if name in numbers else value for name, value in row.items()}
        for row in model.examples.rows[:2]
    ]
    return pd.DataFrame(rows)


class _Predicting:
    """The `python_function` model that MLflow calls."""

    def __init__(self, model: Model) -> None:
        self._model = model.indexed()
        self._columns, self._numbers = _columns_of(model.spec), _numbers_of(model.spec)

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> NDArray[np.float32]:
        """The click probability of each row of a frame, or of rows as dicts, float32[rows]."""
        import pandas as pd

        frame = model_input if isinstance(model_input, pd.DataFrame) else pd.DataFrame(model_input)
        columns: dict[str, Any] = {}
        for name in self._columns:
            if name not in frame.columns:
                columns[name] = pa.nulls(len(frame), pa.string())
                continue
            values = frame[name]
            if name not in self._numbers and pd.api.types.is_float_dtype(values):
                # pandas turns whole numbers into floats if one of them is missing.
                with suppress(TypeError, ValueError):
                    values = values.astype("Int64")
            columns[name] = pa.Array.from_pandas(values)
        table = pa.table(columns)
        # Text with features of its own has a column here, but none for `Model.predict`.
        own_features = not self._model.spec.fields
        return self._model.predict(batch_of(table, self._model.transform) if own_features else table)


def _load_pyfunc(path: str) -> _Predicting:
    """Called by MLflow with the path of the model's folder."""
    return _Predicting(load_folder(path))
