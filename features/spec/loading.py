"""Specs as text, files and folders; `FittedSpec`: a spec with what a first pass over data learnt for it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ctr.errors import DataError, SpecError
from ctr.features.folder import MANIFEST, replace_folder, require_replaceable
from ctr.features.spec.crosses import Cross
from ctr.features.spec.fields import InputField, keys_of_fields
from ctr.features.spec.model import FeatureSpec, digest
from ctr.features.spec.source import Source
from ctr.features.spec.windows import Window
from ctr.features.spec.word_fields import ValueField
from ctr.features.spec.yaml_text import SpecText


def parse_spec(text: str, where: str, *, lines: bool = True) -> FeatureSpec:
    """The spec in the YAML `text`; the message of a SpecError begins with `where` (a file name).

    `lines`: whether it also names the line, which the author of a dict has not seen.
    """
    try:
        return _checked(_read(text, lines))
    except SpecError as error:
        raise SpecError(f"{where}{error}") from None


# Reading takes 20 ms, and a job needs the same spec in several places.
_read = lru_cache(maxsize=8)(SpecText)


def _checked(document: SpecText) -> FeatureSpec:
    try:
        return FeatureSpec.model_validate(document.data)
    except ValidationError as error:
        vocabulary = {
            "the spec itself": tuple(FeatureSpec.model_fields),
            "source": tuple(Source.model_fields),
            **{f"{type_} fields": keys for type_, keys in keys_of_fields().items()},
            "crosses": tuple(Cross.model_fields),
            "windows": tuple(Window.model_fields),
        }
        raise document.explain(error, vocabulary) from None


SPEC = "features.yaml"
LEARNT = "learnt.safetensors"
"""The names of a spec's files in a data set or model; the second exists only after a first pass."""


class FittedSpec(FeatureSpec):
    """A spec with everything that its steps have learnt; usable wherever a spec is."""

    _learnt: bytes = PrivateAttr()
    """Arrays by `<field>/<array>`, as a safetensors file."""

    @staticmethod
    def of(spec: FeatureSpec, learnt: Mapping[str, NDArray[Any]], where: str = "") -> FeatureSpec:
        """`spec` with the arrays of its fields; `spec` itself if it has nothing to learn.

        Raises SpecError, which begins with `where`, unless these are the arrays that its fields learn.
        """
        expected = {f"{field.name}/{array}" for field in spec.all_fields for array in field.learns}
        if expected != set(learnt):
            odd = sorted(expected ^ set(learnt))[0]
            raise SpecError(
                f"{where or 'the feature spec'}: what was learnt for it does not belong to it: {odd!r} is"
                f" {'missing' if odd in expected else 'no array of its fields'}."
            )
        if not expected:
            return spec
        fields = tuple(_without_folder(field) for field in spec.fields)
        fitted = FittedSpec.model_construct(spec.model_fields_set, **dict(spec) | {"fields": fields})
        fitted._learnt = save({name: np.array(learnt[name], order="C") for name in sorted(learnt)})
        return fitted

    def decisive(self) -> dict[str, Any]:
        sums = {
            name: hashlib.sha256(f"{array.dtype.str} {array.shape} ".encode() + array.tobytes()).hexdigest()
            for name, array in load(self._learnt).items()
        }
        return super().decisive() | {"learnt": sums}


def _without_folder(field: InputField) -> InputField:
    """The field without the folder of its vocabulary, which other machines may not have."""
    if not isinstance(field, ValueField) or field.vocabulary is None:
        return field
    return field.model_copy(update={"vocabulary": Path(field.vocabulary).name})


def learnt_of(spec: FeatureSpec) -> dict[str, NDArray[Any]] | None:
    """The arrays that a first pass learnt for `spec`, by `<field>/<array>`; None if it is still needed."""
    if isinstance(spec, FittedSpec):
        return load(spec._learnt)
    return None if any(field.learns for field in spec.all_fields) else {}


def learnt_from(spec: FeatureSpec, fitted: FeatureSpec) -> bool:
    """Whether `fitted` is the same transform as `spec`, or `spec` after fitting on some data."""
    if learnt_of(spec) is None:
        return FeatureSpec.decisive(spec) == FeatureSpec.decisive(fitted)
    return spec.fingerprint == fitted.fingerprint


def unfitted_fingerprint(spec: FeatureSpec) -> str:
    """The fingerprint of `spec` without learnt arrays: the same before and after fitting."""
    return digest(FeatureSpec.decisive(spec))


def spec_files(spec: FeatureSpec) -> dict[str, bytes]:
    """The content of a spec's files, by name; `spec_of_files` reads it back."""
    files = {SPEC: spec.to_yaml().encode()}
    if isinstance(spec, FittedSpec):
        files[LEARNT] = spec._learnt
    return files


def read_spec_files(folder: Path) -> dict[str, bytes]:
    """The content of the files of the spec in `folder`, by name. Raises OSError."""
    files = {SPEC: (folder / SPEC).read_bytes()}
    with suppress(FileNotFoundError):
        files[LEARNT] = (folder / LEARNT).read_bytes()
    return files


def spec_of_files(files: Mapping[str, bytes], where: str) -> FeatureSpec:
    """The spec from `spec_files`; a SpecError begins with `where`, the path of the first file."""
    try:
        spec = parse_spec(files[SPEC].decode(), where)
        return FittedSpec.of(spec, load(files[LEARNT]) if LEARNT in files else {}, where)
    except UnicodeDecodeError as error:
        raise SpecError(f"{where}: byte {error.start} is not UTF-8 text.") from None
    except SafetensorError as error:
        raise SpecError(
            f"{where}: {LEARNT} beside it cannot be read ({error}); restore it, or learn it again."
        ) from None


_SHIPPED = Path(__file__).parent / "shipped"
_FITTED = "ctr fitted spec"
_FILES = frozenset({MANIFEST, SPEC, LEARNT})


def load_spec(name_or_path: str | Path) -> FeatureSpec:
    """The shipped spec of this name (`criteo`, `avazu`, `libsvm`, `vw`), or the spec of a file or folder.

    A folder is a fitted spec, or a hashed data set or model, which have fitted specs. Raises SpecError if
    there is no spec or it is invalid.
    """
    if not isinstance(name_or_path, str | os.PathLike):
        raise SpecError(
            "spec: expected the path of a YAML file, or the name of a spec that ships with the package, got"
            f" {type(name_or_path).__name__}."
        )
    shipped = _shipped()
    path = shipped.get(str(name_or_path), Path(name_or_path))
    try:
        if path.is_dir():
            return _of_folder(path)
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise SpecError(
            f"There is no feature spec {str(name_or_path)!r}: name one that ships with the package"
            f" ({', '.join(shipped)}), or give the path of a YAML file."
        ) from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: byte {error.start} is not UTF-8 text; save the spec as UTF-8.") from None
    except OSError as error:
        raise SpecError(f"{path}: the feature spec cannot be read ({error.strerror}).") from None
    return _beside(path, parse_spec(text, str(path)))


def is_shipped(name: str | Path) -> bool:
    """Whether a spec of this name ships with the package, so that `load_spec` does not read it as a path."""
    return str(name) in _shipped()


def _shipped() -> dict[str, Path]:
    return {path.stem: path for path in sorted(_SHIPPED.glob("*.yaml"))}


def require_place_for_spec(folder: Path) -> None:
    """Raises DataError if `write_fitted_spec` would replace anything but a fitted spec."""
    require_replaceable(folder, "fitted spec", _FITTED, _FILES.__contains__, DataError)


def write_fitted_spec(spec: FeatureSpec, folder: Path) -> None:
    """Writes a spec with its learnt arrays as a folder for `load_spec`. Raises DataError, OSError."""
    require_place_for_spec(folder)
    manifest = {"format": _FITTED, "version": 1, "spec_fingerprint": spec.fingerprint}
    with replace_folder(folder) as draft:
        for name, content in spec_files(spec).items():
            (draft / name).write_bytes(content)
        (draft / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def _of_folder(folder: Path) -> FeatureSpec:
    if not (folder / SPEC).exists():
        raise SpecError(
            f"{folder}: a folder without {SPEC} is no feature spec; give the path of a YAML file."
        )
    spec = spec_of_files(read_spec_files(folder), str(folder / SPEC))
    try:
        expected = str(json.loads((folder / MANIFEST).read_bytes())["spec_fingerprint"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{folder / MANIFEST}: cannot be read ({error}); restore the folder.") from None
    if spec.fingerprint != expected:
        raise SpecError(
            f"{folder}: its spec is torn or was changed: it gives the transform {spec.fingerprint[:12]}, the "
            f"manifest says {expected[:12]}; restore the folder, or make it again."
        )
    return spec


def _beside(path: Path, spec: FeatureSpec) -> FeatureSpec:
    """`spec` with absolute paths of vocabularies, which its file has relative to its own folder."""
    return spec.model_copy(
        update={
            "fields": tuple(
                field.model_copy(update={"vocabulary": str((path.parent / field.vocabulary).absolute())})
                if isinstance(field, ValueField) and field.vocabulary is not None
                else field
                for field in spec.fields
            )
        }
    )
