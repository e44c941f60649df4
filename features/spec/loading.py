"""`load_spec`: a spec by name, from a file, or with what it has learnt from a folder."""

from __future__ import annotations

import json
from pathlib import Path

from ctr.errors import DataError, SpecError
from ctr.features.folder import MANIFEST, replace_folder, require_replaceable
from ctr.features.spec.fitted import LEARNT, SPEC, read_spec_files, spec_files, spec_of_files
from ctr.features.spec.model import FeatureSpec
from ctr.features.spec.parsing import parse_spec
from ctr.features.spec.word_fields import ValueField

_SHIPPED = Path(__file__).parent / "shipped"
_FITTED = "ctr fitted spec"
_FILES = frozenset({MANIFEST, SPEC, LEARNT})


def load_spec(name_or_path: str | Path) -> FeatureSpec:
    """The spec of that name that ships (`criteo`, `avazu`, `libsvm`, `vw`), or else that file's or folder's.

    A folder is a fitted spec, a hashed data set or a model: its spec has learnt what it needs. Raises
    SpecError when there is none or it is wrong.
    """
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
    """Whether a spec of that name ships with the package, so that `load_spec` takes it for no path."""
    return str(name) in _shipped()


def _shipped() -> dict[str, Path]:
    return {path.stem: path for path in sorted(_SHIPPED.glob("*.yaml"))}


def require_place_for_spec(folder: Path) -> None:
    """Raise DataError if `write_fitted_spec` would replace anything but a fitted spec."""
    require_replaceable(folder, "fitted spec", _FITTED, _FILES.__contains__, DataError)


def write_fitted_spec(spec: FeatureSpec, folder: Path) -> None:
    """Write a spec, and what it has learnt, as a folder that `load_spec` reads. Raises DataError, OSError."""
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
        wanted = str(json.loads((folder / MANIFEST).read_bytes())["spec_fingerprint"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{folder / MANIFEST}: cannot be read ({error}); restore the folder.") from None
    if spec.fingerprint != wanted:
        raise SpecError(
            f"{folder}: its spec is torn or was changed: it gives the transform {spec.fingerprint[:12]}, the "
            f"manifest says {wanted[:12]}; restore the folder, or make it again."
        )
    return spec


def _beside(path: Path, spec: FeatureSpec) -> FeatureSpec:
    """`spec` with the paths of vocabularies relative to the folder of its own file."""
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
