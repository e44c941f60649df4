"""The model artifact: a folder written whole or not at all, and checked when it is read.

manifest.json            what the model is, and the SHA-256 of the other files
features.yaml            the spec of its transform
learnt.safetensors       what the transform learnt in a first pass over the data, if anything
examples.json            some rows of the training data, and the model's predictions for them
dictionary.arrow         the texts of the most frequent features, if the data set had them
weights.safetensors      non-zero slots and their weights: all that serving needs
calibration.safetensors  the points of the map from margins to log-odds, if the model is calibrated
state.safetensors        the optimizer's state, from which training can continue
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import orjson
from safetensors import SafetensorError
from safetensors.numpy import save_file

from ctr.errors import ModelError, SpecError, named, path_of
from ctr.features import (
    FeatureSpec,
    Slots,
    Transform,
    folder_of_bytes,
    replace_folder,
    require_replaceable,
    scratch_folder,
    sha256_of,
    slot_dtype,
)
from ctr.features.readable import DICTIONARY
from ctr.features.spec import LEARNT, SPEC, spec_files, spec_of_files
from ctr.features.windows import WINDOW_FILE, read_windows, write_windows
from ctr.model.calibration import Calibration
from ctr.model.examples import Examples
from ctr.model.folder import (
    FORMAT,
    MANIFEST,
    ManifestEntries,
    ModelFolder,
    lineage,
    load_whole,
    manifest_text,
)
from ctr.model.linear import LinearModel
from ctr.model.model import Model, model_id
from ctr.optimizers import Float32, Optimizer

_Loaded = TypeVar("_Loaded")

_WEIGHTS = "weights.safetensors"
_CALIBRATION = "calibration.safetensors"
_STATE = "state.safetensors"
_EXAMPLES = "examples.json"
_DTYPES = {np.float32: "F32", np.float64: "F64", np.uint32: "U32", np.uint64: "U64"}
"""The names of dtypes in safetensors files."""


def save_model(model: Model, path: Path, state: tuple[Slots, Float32]) -> None:
    """Write `model`, and the optimizer's state float32[k, 2] at its slots, as the folder `path`.

    The folder appears complete or not at all; an earlier model stays until the new one has reached the
    disk. Raises ModelError if `path` is anything but a model, or cannot be written.
    """
    require_model_or_nothing(path)
    try:
        with replace_folder(path) as folder:
            contents = spec_files(model.spec)
            if model.dictionary is not None:
                contents[DICTIONARY] = model.dictionary
            if model.examples is not None:
                contents[_EXAMPLES] = model.examples.content(model.predict(model.examples.rows))
            for name, content in contents.items():
                (folder / name).write_bytes(content)
            linear = model.linear
            save_file({"slots": linear.slots, "weights": linear.weights}, folder / _WEIGHTS)
            slots, numbers = state
            save_file({"slots": slots, "state": numbers}, folder / _STATE)
            arrays = [_WEIGHTS, _STATE]
            if (calibration := model.calibration) is not None:
                points = {"margins": calibration.margins, "log_odds": calibration.log_odds}
                save_file(points, folder / _CALIBRATION)
                arrays.append(_CALIBRATION)
            for name in arrays:  # safetensors writes files that other users cannot read
                shutil.copymode(folder / SPEC, folder / name)
            if model.windows is not None:
                arrays += write_windows(model.windows, folder, folder / SPEC)
            files = {name: sha256_of(folder / name) for name in (*contents, *arrays)}
            (folder / MANIFEST).write_bytes(manifest_text({**model.manifest, "sha256": files}))
    except (OSError, SafetensorError) as error:
        outcome = "the earlier model is unchanged" if path.exists() else "nothing was left behind"
        raise ModelError(f"{path}: the model could not be saved ({error}); {outcome}.") from error


def update_manifest(model: Model, path: Path) -> None:
    """Rewrite the manifest of `model`, which `save_model` has saved as `path`: completely or not at all.

    Raises ModelError if another model has replaced it, or the disk refuses; the folder is then unchanged.
    """
    try:
        with ExitStack() as opened:
            # Through the open folder: a model that replaces it meanwhile is not touched.
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            opened.callback(os.close, folder)
            with open(MANIFEST, "rb", opener=partial(os.open, dir_fd=folder)) as file:
                saved = orjson.loads(file.read())
            if saved["id"] != model.id:
                raise ModelError(f"{path}: another model, {saved['id']}, has replaced {model.id}.")
            place = path.resolve()
            draft = opened.enter_context(scratch_folder(place.parent, f".{place.name}.", ".partial"))
            with (draft / MANIFEST).open("wb") as file:
                file.write(manifest_text({**model.manifest, "sha256": saved["sha256"]}))
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft / MANIFEST, MANIFEST, dst_dir_fd=folder)
            os.fsync(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: the manifest could not be rewritten ({error}).") from error


def require_model_or_nothing(path: Path) -> None:
    """Raises ModelError if writing a model to `path` would delete anything but a model."""
    files = {MANIFEST, SPEC, LEARNT, DICTIONARY, _WEIGHTS, _STATE, _CALIBRATION, _EXAMPLES}
    require_replaceable(
        path, "model", FORMAT, lambda name: name in files or WINDOW_FILE.fullmatch(name), ModelError
    )


def load_model(path: str | Path) -> Model:
    """Load the model in the folder `path`.

    If a training job replaces the folder meanwhile, the result is the whole old or the whole new model.
    Raises ModelError if the model is missing, incomplete or of a newer format, or its files do not match.
    """
    return load_whole(path_of("path", path), _load)


def _load(folder: ModelFolder) -> Model:
    path, manifest = folder.path, folder.manifest
    try:
        names = (SPEC, LEARNT) if LEARNT in manifest["sha256"] else (SPEC,)
        files = {name: bytes(folder.content(name)) for name in names}
        spec = spec_of_files(files, where=str(path / SPEC))
    except SpecError as error:
        raise ModelError(f"{error} The model was written by another version; train it again.") from error
    if spec.fingerprint != manifest["spec_fingerprint"]:
        raise ModelError(
            f"{path}: the model was trained with the transform {manifest['spec_fingerprint'][:12]}, but its "
            f"{SPEC} gives {spec.fingerprint[:12]}; restore the folder or train again."
        )
    linear = LinearModel(
        *_tensors(folder, _WEIGHTS, {"slots": (slot_dtype(spec.bits), 1), "weights": (np.float32, 1)})
    )
    calibration = _calibration(folder)
    actual = model_id(spec, linear, calibration)
    if actual != manifest["id"]:
        raise ModelError(
            f"{path}: {MANIFEST} names model {manifest['id']}, but the weights are those of model "
            f"{actual}; restore the folder or train again."
        )
    windows = (
        read_windows(spec, lambda name: bytes(folder.content(name)), str(path)) if spec.windows else None
    )
    transform = Transform(spec, with_label=False, history=windows)
    return Model(
        linear,
        transform,
        manifest,
        windows=windows,
        folder=path,
        calibration=calibration,
        examples=_examples(folder),
    )


def dictionary_of(model: Model) -> bytes | None:
    """The dictionary file in the folder that `model` was loaded from; None if there is none.

    Raises ModelError if it is not the one that was saved with the model.
    """
    if model.folder is None or DICTIONARY not in model.manifest["sha256"]:
        return None
    return _load_more(model, lambda folder: bytes(folder.content(DICTIONARY)))


def state_of(model: Model) -> tuple[Slots, Float32]:
    """The optimizer's state in the folder that `model` was loaded from.

    Raises ModelError if it is not the one that was saved with the model.
    """
    return _load_more(model, lambda folder: _state(folder, model.spec.bits))


def _load_more(model: Model, load: Callable[[ModelFolder], _Loaded]) -> _Loaded:
    """The result of `load` for the folder of a loaded model. Raises ModelError if another has replaced it."""
    assert model.folder is not None

    def read(folder: ModelFolder) -> _Loaded:
        folder.require(model.manifest)
        return load(folder)

    return load_whole(model.folder, read)


def _state(folder: ModelFolder, bits: int) -> tuple[Slots, Float32]:
    slots, state = _tensors(folder, _STATE, {"slots": (slot_dtype(bits), 1), "state": (np.float32, 2)})
    return slots, state


def _examples(folder: ModelFolder) -> Examples | None:
    if _EXAMPLES not in folder.manifest["sha256"]:
        return None
    try:
        return Examples.of_content(bytes(folder.content(_EXAMPLES)))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"{folder.path}: {_EXAMPLES} cannot be read ({error}); train the model again."
        ) from error


def _calibration(folder: ModelFolder) -> Calibration | None:
    if _CALIBRATION not in folder.manifest["sha256"]:
        return None
    points = {"margins": (np.float64, 1), "log_odds": (np.float64, 1)}
    margins, log_odds = _tensors(folder, _CALIBRATION, points)
    try:
        facts = dict(folder.manifest["calibrated"])
        method, slope = facts.pop("method"), float(facts.pop("slope"))
        return Calibration(method, margins, log_odds, slope, facts)
    except (KeyError, TypeError, ValueError, ModelError) as error:
        raise ModelError(
            f"{folder.path}: {MANIFEST} and {_CALIBRATION} do not match ({error}); train the model again."
        ) from error


@dataclass(frozen=True, slots=True)
class SavedState:
    """The state from which training can continue."""

    slots: Slots
    """uint32|uint64[k], sorted."""
    state: Float32
    """float32[k, width]."""
    optimizer: Optimizer
    """The optimizer that learnt the state, with its settings."""
    passes: float
    """The average number of passes over its rows."""
    rows: int
    """The number of rows it was learnt from, including those of the models that it continues."""
    chunks: int
    """The number of chunks it was learnt from, in all passes; 0 if the manifest has none. Rounding depends
    on it."""
    lineage: Sequence[Mapping[str, Any]] = ()
    """See `ctr.model.folder.lineage`."""


def load_state(path: Path, spec: FeatureSpec) -> SavedState:
    """The optimizer's state in the model folder `path`.

    Raises ModelError as `load_model` does, and if the model's transform is not that of `spec`.
    """
    return load_whole(path, partial(_load_state, spec))


def _load_state(spec: FeatureSpec, folder: ModelFolder) -> SavedState:
    path, manifest = folder.path, folder.manifest
    if manifest["spec_fingerprint"] != spec.fingerprint:
        raise ModelError(
            f"{path}: the model was trained with the transform {manifest['spec_fingerprint'][:12]}, this job "
            f"uses {spec.fingerprint[:12]}; use the model's own {SPEC} as {named('spec')}, or start afresh."
        )
    slots, state = _state(folder, spec.bits)
    entries = ManifestEntries.model_validate(manifest)
    optimizer, passes = entries.optimizer.optimizer, entries.optimizer.passes
    if state.shape[1] != optimizer.width:
        raise ModelError(
            f"{path}: {_STATE} has {state.shape[1]} numbers per slot, the optimizer {optimizer.name} has "
            f"{optimizer.width}; restore the folder or train again."
        )
    models = lineage(manifest)
    rows = sum(model.get("rows") or 0 for model in models)
    return SavedState(slots, state, optimizer, passes, rows, entries.training.chunks, models)


def _tensors(folder: ModelFolder, name: str, expected: Mapping[str, tuple[Any, int]]) -> list[Any]:
    """The tensors of a safetensors file as arrays in the mapped file; `safetensors.numpy.load` copies them.

    `expected` has the dtype and the number of axes of each; the first tensor is ascending.
    """
    # The file format: the length of the header in 8 bytes, the header as JSON, and the numbers.
    path, content = folder.path / name, folder.content(name)
    tensors: list[Any] = []
    try:
        numbers = 8 + int.from_bytes(content[:8], "little")
        header = orjson.loads(content[8:numbers])
        for tensor, (dtype, ndim) in expected.items():
            entry = header[tensor]
            if entry["dtype"] != _DTYPES[dtype] or len(entry["shape"]) != ndim:
                raise ModelError(f"{path}: the tensor {tensor} has another type; train the model again.")
            begin, end = entry["data_offsets"]
            flat = np.frombuffer(content, np.uint8, end - begin, numbers + begin).view(dtype)
            tensors.append(np.require(flat, requirements="A").reshape(entry["shape"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read ({error}); train the model again.") from error
    first = tensors[0]
    if any(len(each) != first.size for each in tensors) or (first[1:] <= first[:-1]).any():
        raise ModelError(f"{path}: {' and '.join(expected)} do not match; train the model again.")
    return tensors


def model_of_bytes(content: bytes) -> Model:
    """The model whose folder `ctr.features.folder_bytes` turned into bytes; it needs no folder."""
    with folder_of_bytes(content) as folder:
        return load_detached(folder)


def load_detached(path: str | Path) -> Model:
    """Load a model with everything in its folder, which may then be removed; see `load_model`."""
    model = load_model(path)
    return replace(model, dictionary=dictionary_of(model), state=state_of(model), folder=None)
