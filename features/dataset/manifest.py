"""`DatasetManifest`: the description of a hashed data set, in its folder."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ctr.errors import DataError
from ctr.features.folder import MANIFEST, require_replaceable
from ctr.features.readable import DICTIONARY
from ctr.features.spec import LEARNT, SPEC
from ctr.features.windows import WINDOW_FILE

FORMAT = "ctr hashed data set"
FORMAT_VERSION = 2
_READ_VERSIONS = (1, 2)
"""Version 1 has no field ids."""
RAW_ROWS = "raw-rows.arrow"
"""The file that says which rows of the raw files are in the data set, unless all are."""

_OWN_NAME = re.compile(
    "|".join(
        [
            *map(re.escape, (MANIFEST, SPEC, LEARNT, DICTIONARY, RAW_ROWS)),
            r"shard-[0-9]{5,}\.arrow",
            WINDOW_FILE.pattern,
        ]
    )
)
_FROZEN = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True, populate_by_name=True)
_Count = Annotated[int, Field(ge=0)]
_Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class PartEntry(BaseModel):
    """One Arrow file of a data set."""

    model_config = _FROZEN

    name: Annotated[str, Field(pattern=r"^shard-[0-9]{5,}\.arrow$")]
    rows: Annotated[int, Field(gt=0)]
    bytes: _Count
    sha256: _Sha256


class RawFileEntry(BaseModel):
    """A raw file as it was when a data set was built from it."""

    model_config = _FROZEN

    location: str
    """Its absolute path, or its URI."""
    rows: _Count
    """The number of its data rows, good or bad."""
    bytes: _Count
    modified_ns: int
    """Nanoseconds since 1970; 0 if unknown."""


class DatasetManifest(BaseModel):
    """The content of `manifest.json`."""

    model_config = _FROZEN

    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    created: str
    """UTC, ISO 8601."""
    spec_fingerprint: _Sha256
    bits: Annotated[int, Field(ge=1, le=40)]
    rows: Annotated[int, Field(gt=0)]
    positives: _Count
    """Rows whose label is 1; 0 without labels."""
    features: _Count
    """Of all rows together."""
    block_rows: Annotated[int, Field(gt=0)]
    """Rows of every block; the last block of a part may have fewer."""
    has_labels: bool
    has_values: bool
    """Whether any value differs from 1."""
    has_weights: bool
    fields: Annotated[tuple[str, ...] | None, Field(strict=False)] = None
    """The names of the spec's fields and crosses; field ids are their positions, from 1. None: unknown."""
    sha256: dict[str, _Sha256] = Field(default_factory=dict)
    """By file name: of the dictionary, and of the state of windows after the last row."""
    windows_before: _Count | None = None
    """How many keys the windows knew before the first row; None: no windows, or not recorded."""
    shuffled: Annotated[int, Field(ge=0)] | None = None
    """The seed of the rows' random order; None if they are in the order of the input."""
    raw_files: Annotated[tuple[RawFileEntry, ...] | None, Field(strict=False)] = None
    """The files it was built from, in order; `RAW_ROWS` says which of their rows it has, unless all. None:
    not recorded, or the rows are in a random order."""
    raw_rows_sha256: _Sha256 | None = None
    """Of `RAW_ROWS`; None: all rows of the raw files are in the data set."""
    parts: Annotated[tuple[PartEntry, ...], Field(alias="shards", strict=False)]
    """In the order of their rows. In the manifest, the key and the file names still say *shard*."""

    @model_validator(mode="after")
    def _check(self) -> DatasetManifest:
        if sum(part.rows for part in self.parts) != self.rows:
            raise ValueError("the rows of the parts do not add up to `rows`")
        return self

    @property
    def bytes(self) -> int:
        """The total size of all parts."""
        return sum(part.bytes for part in self.parts)

    def require_fields(self, name: str, why: str) -> tuple[str, ...]:
        """The names of its fields and crosses. Raises DataError, which says `why`, if they are unknown.

        `name`: the user's name for the data set.
        """
        if self.fields is None:
            raise DataError(
                f"{name}: {why}, and the data set has no field ids, as earlier versions of ctr wrote none;"
                " build it again with `ctr features build`, or give the raw files."
            )
        return self.fields

    @property
    def digest(self) -> str:
        """12 hex digits that are the same only for the same content, wherever and whenever it was built."""
        content = "\n".join([self.spec_fingerprint, *(part.sha256 for part in self.parts)])
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    def write(self, folder: Path) -> None:
        """Writes it into `folder`."""
        optional = ("sha256", "windows_before", "raw_files", "raw_rows_sha256", "fields")
        absent = {name for name in optional if getattr(self, name) in (None, {})}
        # Earlier versions do not know the optional keys.
        text = self.model_dump_json(indent=2, by_alias=True, exclude=absent)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def require_dataset_or_nothing(folder: Path) -> None:
    """Raises DataError if writing a data set to `folder` would delete anything but a data set."""
    require_replaceable(folder, "data set", FORMAT, is_own_name, DataError)


def is_own_name(name: str) -> bool:
    """Whether a file of a data set can have this name."""
    return _OWN_NAME.fullmatch(name) is not None


def read_manifest(folder: Path, name: str | None = None) -> DatasetManifest:
    """The manifest in `folder`, which error messages call `name`.

    Raises DataError if there is none, or it is torn or of another format or version.
    """
    name = name or str(folder)
    if not folder.is_dir():
        what = "is a file, not the folder of a hashed data set" if folder.exists() else "does not exist"
        raise DataError(f"{name}: {what}; `ctr features build` makes one.")
    path = f"{name}/{MANIFEST}"
    try:
        data = json.loads((folder / MANIFEST).read_bytes())
        kind, version = data["format"], data["format_version"]
    except FileNotFoundError:
        raise DataError(
            f"{name}: without {MANIFEST} it is no hashed data set; `ctr features build` makes one."
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: not the manifest of a whole data set ({type(error).__name__}: {error}); build it again"
            " with `ctr features build`."
        ) from None
    if kind != FORMAT:
        raise DataError(f"{name}: is a {kind}, not a hashed data set; `ctr features build` makes one.")
    if version not in _READ_VERSIONS:
        raise DataError(
            f"{name}: the data set has format version {version!r}, this program reads 1 and 2; use"
            " the version of ctr that wrote it, or build it again with `ctr features build`."
        )
    try:
        return DatasetManifest.model_validate(data)
    except ValidationError as error:
        raise DataError(
            f"{path}: {_complaint(error)}; build the data set again with `ctr features build`."
        ) from None


def torn_part(name: str, part: PartEntry, problem: str) -> DataError:
    """The error of a part of the data set that the user knows as `name`."""
    return DataError(
        f"{name}/{part.name}: torn or changed since it was written: {problem}; build the data set again with"
        " `ctr features build`."
    )


def _complaint(error: ValidationError) -> str:
    """The first of pydantic's complaints: the place and the value."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"{place}: it is missing"
    return f"{place}: {first['input']!r:.80} is not what this program writes there"
