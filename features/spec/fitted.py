"""`FittedSpec`: a spec, and what a first pass over data learnt for it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ctr.errors import SpecError
from ctr.features.spec.fields import InputField
from ctr.features.spec.model import FeatureSpec, digest
from ctr.features.spec.parsing import parse_spec
from ctr.features.spec.word_fields import ValueField

SPEC = "features.yaml"
LEARNT = "learnt.safetensors"
"""The names of a spec's files in a data set or model; without a first pass there is none of the second."""


class FittedSpec(FeatureSpec):
    """A spec whose steps have learnt what they need; it stands wherever a spec does."""

    _learnt: bytes = PrivateAttr()
    """Arrays by `<field>/<array>`, as a safetensors file."""

    @staticmethod
    def of(spec: FeatureSpec, learnt: Mapping[str, NDArray[Any]], where: str = "") -> FeatureSpec:
        """`spec` with the arrays of its fields; just `spec` if it has nothing to learn.

        Raises SpecError, which begins with `where`, when the arrays are not those that its fields learn.
        """
        wanted = {f"{field.name}/{array}" for field in spec.all_fields for array in field.learns}
        if wanted != set(learnt):
            odd = sorted(wanted ^ set(learnt))[0]
            raise SpecError(
                f"{where or 'the feature spec'}: what was learnt for it does not belong to it: {odd!r} is"
                f" {'missing' if odd in wanted else 'no array of its fields'}."
            )
        if not wanted:
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
    """The field once its vocabulary is learnt: on other machines it stands elsewhere, or not at all."""
    if not isinstance(field, ValueField) or field.vocabulary is None:
        return field
    return field.model_copy(update={"vocabulary": Path(field.vocabulary).name})


def learnt_of(spec: FeatureSpec) -> dict[str, NDArray[Any]] | None:
    """What a first pass learnt for `spec`, by `<field>/<array>`; None if that pass is still to come."""
    if isinstance(spec, FittedSpec):
        return load(spec._learnt)
    return None if any(field.learns for field in spec.all_fields) else {}


def learnt_from(spec: FeatureSpec, fitted: FeatureSpec) -> bool:
    """Whether `fitted` is the same transform as `spec`, or what that became as it learnt from some data."""
    if learnt_of(spec) is None:
        return FeatureSpec.decisive(spec) == FeatureSpec.decisive(fitted)
    return spec.fingerprint == fitted.fingerprint


def unfitted_fingerprint(spec: FeatureSpec) -> str:
    """The fingerprint of `spec` without what a first pass learnt for it, the same before and after that."""
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
    """The spec that `spec_files` gave; a SpecError begins with `where`, the place of the first file."""
    try:
        spec = parse_spec(files[SPEC].decode(), where)
        return FittedSpec.of(spec, load(files[LEARNT]) if LEARNT in files else {}, where)
    except UnicodeDecodeError as error:
        raise SpecError(f"{where}: byte {error.start} is not UTF-8 text.") from None
    except SafetensorError as error:
        raise SpecError(
            f"{where}: {LEARNT} beside it cannot be read ({error}); restore it, or learn it again."
        ) from None
