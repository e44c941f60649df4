"""`Source`: how raw data is laid out; `FORMATS`: the formats it may have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, model_validator
from pydantic_core import PydanticKnownError

from ctr.features.spec.fields import FROZEN, InputField, Names, check_delimiter, misfit, one_of

LABEL, WEIGHT, FEATURES = "label", "weight", "features"
"""The columns of rows whose format has no named columns: their first tokens, and the rest."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format of raw files: everything but its reader."""

    name: str
    open: Callable[[Any, Any, Any], Any]
    """(`InputFile`, FeatureSpec, the purpose of its labels) -> its `ctr.features.block.Reader`."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of its files, in lower case; they take precedence over the format of the spec."""
    begins: tuple[bytes, ...] = ()
    """The first bytes by which its files are recognised: no other files begin with them."""
    keys: tuple[str, ...] = ("ignore",)
    """The keys besides `format` that a spec's `source` may have with it."""
    label: str | None = None
    """The column of the label, if rows have no named columns but carry their label and features."""
    weight: str | None = None
    """The column of the weight, likewise."""
    fields: tuple[InputField, ...] = ()
    """The fields of such rows, which specs do not list."""


FORMATS: dict[str, Format] = {}
"""Formats by name, registered by `ctr.features.readers.opening`."""


_DELIMITERS = {"csv": ",", "tsv": "\t", "delimited": ","}
"""The default delimiter for each name of delimited text."""
_QUOTING = (",", ";")
"""The delimiters with which cells may be quoted (RFC 4180) unless a spec says otherwise."""


def _known(name: str) -> str:
    if name not in FORMATS:
        raise PydanticKnownError(
            "literal_error", {"expected": one_of(dict.fromkeys([*_DELIMITERS, *FORMATS]))}
        )
    return name


class Source(BaseModel):
    """The layout of the raw data. It does not affect the features that a value becomes."""

    model_config = FROZEN

    format: Annotated[str, AfterValidator(_known)]
    """The format of files whose suffix does not tell it."""
    delimiter: str = ","
    """The ASCII character between two cells; delimited text only."""
    header: bool = True
    """Whether the first line names the columns; delimited text only."""
    quote: bool = False
    """Whether a cell may be in double quotes, in which `""` is a quote and newlines are text. By default,
    true if the delimiter is a comma or semicolon."""
    columns: Names = ()
    """The names of all columns in order: given if and only if `header` is false."""
    ignore: Names = ()
    """Columns that no field reads, but that rows sent for scoring may have; not in libsvm."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        """Completes the settings of delimited text by its name and delimiter."""
        name = given.get("format") if isinstance(given, dict) else None
        if not isinstance(name, str) or name not in _DELIMITERS:
            return given
        delimiter = given.get("delimiter", _DELIMITERS[name])
        defaults = {"delimiter": delimiter, "quote": delimiter in _QUOTING}
        return {**defaults, **given, "format": "delimited"}

    @model_validator(mode="after")
    def _check(self) -> Self:
        allowed = FORMATS[self.format].keys
        for key in ("delimiter", "header", "quote", "columns"):
            if key in self.model_fields_set and key not in allowed:
                raise misfit((key,), f"only delimited text has it, not format {self.format}; remove it")
        if self.ignore and "ignore" not in allowed:
            raise misfit(("ignore",), f"{self.format} data has no named columns; remove it")
        check_delimiter(self.delimiter, quotes=True)
        if self.header and self.columns:
            raise misfit(("columns",), "the header names the columns; remove this list or set header: false")
        if not self.header and not self.columns:
            raise misfit((), "without a header, `columns` must list the names of all columns in order")
        return self

    def to_yaml(self) -> dict[str, Any]:
        """Its entries in the spec's YAML text."""
        return self.model_dump(mode="json", include={"format", *FORMATS[self.format].keys})
