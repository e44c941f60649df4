"""The model artifact: a folder written whole or not at all, and checked when it is read.

manifest.json            what the model is, and the SHA-256 of the other files
features.yaml            the spec of its transform
learnt.safetensors       what a first pass over the data learnt for that, if anything
dictionary.arrow         the texts of the most frequent features, if the data set had them
weights.safetensors      non-zero slots and their weights: all that serving needs
calibration.safetensors  the points of the map from margins to log-odds, if the model is calibrated
state.safetensors        the optimizer's state, to train on from
"""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from safetensors import SafetensorError
from safetensors.numpy import save_file

from ctr.errors import ModelError, SpecError
from ctr.features import (
    FeatureSpec,
    Slots,
    Transform,
    replace_folder,
    require_replaceable,
    scratch_folder,
    slot_dtype,
)
from ctr.features.readable import DICTIONARY
from ctr.features.spec import LEARNT, SPEC, spec_files, spec_of_files
from ctr.features.windows import WINDOW_FILE, Windows, read_windows, sha256_of, write_windows
from ctr.model.calibration import Calibration
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

_WEIGHTS = "weights.safetensors"
_CALIBRATION = "calibration.safetensors"
_STATE = "state.safetensors"
_DTYPES = {np.float32: "F32", np.float64: "F64", np.uint32: "U32", np.uint64: "U64"}
"""As safetensors calls them."""


def save_model(model: Model, path: Path, state: tuple[Slots, Float32]) -> None:
    """Write `model`, and the optimizer's state float32[k, 2] at its slots, as the folder `path`.

    The folder is complete or not there at all; a model that was there before stays until the new one
    has reached the disk. Raises ModelError when `path` is something else than a model, or the disk
    refuses.
    """
    require_model_or_nothing(path)
    try:
        with replace_folder(path) as folder:
            whole = spec_files(model.spec)
            if model.dictionary is not None:
                whole[DICTIONARY] = model.dictionary
            for name, content in whole.items():
                (folder / name).write_bytes(content)
            linear = model.linear
            save_file({"slots": linear.slots, "weights": linear.weights}, folder / _WEIGHTS)
            slots, numbers = state
            save_file({"slots": slots, "state": numbers}, folder / _STATE)
            arrays = [_WEIGHTS, _STATE]
            if (known := model.calibration) is not None:
                points = {"margins": known.margins, "log_odds": known.log_odds}
                save_file(points, folder / _CALIBRATION)
                arrays.append(_CALIBRATION)
            for name in arrays:  # safetensors keeps its files from other users
                shutil.copymode(folder / SPEC, folder / name)
            of_windows = [] if model.windows is None else write_windows(model.windows, folder, folder / SPEC)
            files = {name: sha256_of(folder / name) for name in (*whole, *arrays, *of_windows)}
            (folder / MANIFEST).write_bytes(manifest_text({**model.manifest, "sha256": files}))
    except (OSError, SafetensorError) as error:
        kept = "the model that was there is unchanged" if path.exists() else "nothing was left behind"
        raise ModelError(f"{path}: the model could not be saved ({error}); {kept}.") from error


def update_manifest(model: Model, path: Path) -> None:
    """Write the manifest of `model`, which `save_model` has saved as `path`, anew: as a whole or not at all.

    Raises ModelError when another model is there by now, or the disk refuses; the folder is then unchanged.
    """
    try:
        with ExitStack() as opened:
            # The folder itself: what gets its name while this goes on is not touched.
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            opened.callback(os.close, folder)
            with open(MANIFEST, "rb", opener=partial(os.open, dir_fd=folder)) as file:
                there = orjson.loads(file.read())
            if there["id"] != model.id:
                raise ModelError(f"{path}: another model, {there['id']}, has taken the place of {model.id}.")
            place = path.resolve()
            draft = opened.enter_context(scratch_folder(place.parent, f".{place.name}.", ".partial"))
            with (draft / MANIFEST).open("wb") as file:
                file.write(manifest_text({**model.manifest, "sha256": there["sha256"]}))
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft / MANIFEST, MANIFEST, dst_dir_fd=folder)
            os.fsync(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: the manifest could not be written anew ({error}).") from error


def require_model_or_nothing(path: Path) -> None:
    """Raise ModelError if writing a model to `path` would delete something that is none."""
    parts = {MANIFEST, SPEC, LEARNT, DICTIONARY, _WEIGHTS, _STATE, _CALIBRATION}

    def is_part(name: str) -> bool:
        return name in parts or WINDOW_FILE.fullmatch(name) is not None

    require_replaceable(path, "model", FORMAT, is_part, ModelError)


def load_model(path: str | Path) -> Model:
    """Load the model in the folder `path`.

    A training job may replace the folder meanwhile: the model is then the old or the new one, whole.
    Raises ModelError when it is missing, torn, of a newer format, or its parts do not belong together.
    """
    return load_whole(Path(path), _load)


def _load(folder: ModelFolder) -> Model:
    path, manifest = folder.path, folder.manifest
    try:
        names = (SPEC, LEARNT) if LEARNT in manifest["sha256"] else (SPEC,)
        of_spec = {name: bytes(folder.content(name)) for name in names}
        spec = spec_of_files(of_spec, where=str(path / SPEC))
    except SpecError as error:
        raise ModelError(f"{error} The model was written by another version; train it again.") from error
    if spec.fingerprint != manifest["spec_fingerprint"]:
        raise ModelError(
            f"{path}: the model was trained with the transform {manifest['spec_fingerprint'][:12]}, but its "
            f"{SPEC} gives {spec.fingerprint[:12]}; restore the folder or train again."
        )
    wanted = {"slots": (slot_dtype(spec.bits), 1), "weights": (np.float32, 1)}
    tensors = _tensors(path / _WEIGHTS, folder.content(_WEIGHTS), wanted)
    linear = LinearModel(tensors["slots"], tensors["weights"])
    calibration = _calibration(folder)
    found = model_id(spec, linear, calibration)
    if found != manifest["id"]:
        raise ModelError(
            f"{path}: {MANIFEST} names model {manifest['id']}, but the weights are those of model "
            f"{found}; restore the folder or train again."
        )
    windows = _windows(spec, folder)
    transform = Transform(spec, with_label=False, history=windows)
    return Model(linear, transform, manifest, windows=windows, folder=path, calibration=calibration)


def dictionary_of(model: Model) -> bytes | None:
    """The file of the dictionary in the folder that `model` was loaded from; None if that has none.

    Raises ModelError when it is not the one that was saved with the model.
    """
    if model.folder is None or DICTIONARY not in model.manifest["sha256"]:
        return None

    def read(folder: ModelFolder) -> bytes:
        folder.require(model.manifest)
        return bytes(folder.content(DICTIONARY))

    return load_whole(model.folder, read)


def state_of(model: Model) -> tuple[Slots, Float32]:
    """The optimizer's state in the folder that `model` was loaded from.

    Raises ModelError when it is not the one that was saved with the model.
    """
    assert model.folder is not None

    def read(folder: ModelFolder) -> tuple[Slots, Float32]:
        folder.require(model.manifest)
        return _state(folder, model.spec.bits)

    return load_whole(model.folder, read)


def _state(folder: ModelFolder, bits: int) -> tuple[Slots, Float32]:
    wanted = {"slots": (slot_dtype(bits), 1), "state": (np.float32, 2)}
    tensors = _tensors(folder.path / _STATE, folder.content(_STATE), wanted)
    return tensors["slots"], tensors["state"]


def _calibration(folder: ModelFolder) -> Calibration | None:
    path, manifest = folder.path, folder.manifest
    if _CALIBRATION not in manifest["sha256"]:
        return None
    wanted = {"margins": (np.float64, 1), "log_odds": (np.float64, 1)}
    points = _tensors(path / _CALIBRATION, folder.content(_CALIBRATION), wanted)
    try:
        told = dict(manifest["calibrated"])
        method, slope = told.pop("method"), float(told.pop("slope"))
        return Calibration(method, points["margins"], points["log_odds"], slope, told)
    except (KeyError, TypeError, ValueError, ModelError) as error:
        raise ModelError(
            f"{path}: {MANIFEST} and {_CALIBRATION} do not fit together ({error}); train the model again."
        ) from error


def _windows(spec: FeatureSpec, folder: ModelFolder) -> Windows | None:
    if not spec.windows:
        return None
    return read_windows(spec, lambda name: bytes(folder.content(name)), str(folder.path))


@dataclass(frozen=True, slots=True)
class SavedState:
    """What a model's training can go on from."""

    slots: Slots
    """uint32|uint64[k], sorted."""
    state: Float32
    """float32[k, width]."""
    optimizer: Optimizer
    """With the settings that the state was learnt with."""
    passes: float
    """Over the rows that went into it, on average."""
    rows: int
    """That went into it, those of the models that it comes from included."""
    chunks: int
    """That went into it, in all passes; 0 where that was not written down. Rounding goes on from there."""
    lineage: Sequence[Mapping[str, Any]] = ()
    """See `ctr.model.folder.lineage`."""


def load_state(path: Path, spec: FeatureSpec) -> SavedState:
    """The optimizer's state in the model folder `path`.

    Raises ModelError as `load_model` does, also when the model's transform is not that of `spec`.
    """
    return load_whole(path, partial(_load_state, spec))


def _load_state(spec: FeatureSpec, folder: ModelFolder) -> SavedState:
    path, manifest = folder.path, folder.manifest
    if manifest["spec_fingerprint"] != spec.fingerprint:
        raise ModelError(
            f"{path}: the model was trained with the transform {manifest['spec_fingerprint'][:12]}, this job "
            f"uses {spec.fingerprint[:12]}; use the model's own {SPEC} as --spec, or start afresh."
        )
    slots, state = _state(folder, spec.bits)
    entries = ManifestEntries.model_validate(manifest)
    optimizer, passes = entries.optimizer.optimizer, entries.optimizer.passes
    if state.shape[1] != optimizer.width:
        raise ModelError(
            f"{path}: {_STATE} has {state.shape[1]} numbers per slot, the optimizer {optimizer.name} has "
            f"{optimizer.width}; restore the folder or train again."
        )
    comes_from = lineage(manifest)
    rows = sum(each.get("rows") or 0 for each in comes_from)
    return SavedState(slots, state, optimizer, passes, rows, entries.training.chunks, comes_from)


def _tensors(path: Path, content: mmap.mmap, wanted: Mapping[str, tuple[Any, int]]) -> dict[str, Any]:
    """The tensors of a safetensors file, as arrays in its memory: `safetensors.numpy.load` copies them.

    `wanted` has the dtype and the number of axes of each; the first is ascending.
    """
    # Such a file is the length of its header in 8 bytes, the header as JSON, and the numbers.
    tensors: dict[str, Any] = {}
    try:
        numbers = 8 + int.from_bytes(content[:8], "little")
        header = orjson.loads(content[8:numbers])
        for name, (dtype, ndim) in wanted.items():
            entry = header[name]
            if entry["dtype"] != _DTYPES[dtype] or len(entry["shape"]) != ndim:
                raise ModelError(f"{path}: the tensor {name} is of another type; train the model again.")
            begin, end = entry["data_offsets"]
            flat = np.frombuffer(content, np.uint8, end - begin, numbers + begin).view(dtype)
            tensors[name] = np.require(flat, requirements="A").reshape(entry["shape"])
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read ({error}); train the model again.") from error
    first, *_ = tensors.values()
    if any(len(each) != first.size for each in tensors.values()) or (first[1:] <= first[:-1]).any():
        raise ModelError(f"{path}: {' and '.join(wanted)} do not fit together; train the model again.")
    return tensors
