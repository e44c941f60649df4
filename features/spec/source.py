"""`Source`: how raw data is laid out; `FORMATS`: the formats it may have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, model_validator
from pydantic_core import PydanticKnownError

from ctr.features.spec.fields import FROZEN, InputField, Names, check_delimiter, misfit, one_of

LABEL, WEIGHT, FEATURES = "label", "weight", "features"
"""The columns of rows without named ones: their first tokens, and all that follows."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format of raw files: everything about it but its reader."""

    name: str
    open: Callable[[Any, Any, Any], Any]
    """(the `InputFile`, the FeatureSpec, what its labels are for) -> its `ctr.features.block.Reader`."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of its files, in lower case, which take precedence over the format of the spec."""
    begins: tuple[bytes, ...] = ()
    """The first bytes of such files, and of no others, by which they are recognised."""
    keys: tuple[str, ...] = ("ignore",)
    """The keys that a spec's `source` may have with it, besides `format`."""
    label: str | None = None
    """The column of the label, if rows have no named columns but carry label and features of their own."""
    weight: str | None = None
    """The column of the weight, likewise."""
    fields: tuple[InputField, ...] = ()
    """The fields of such rows: a spec lists none."""


FORMATS: dict[str, Format] = {}
"""By name: see `ctr.features.readers.opening`, which fills it."""


_DELIMITERS = {"csv": ",", "tsv": "\t", "delimited": ","}
"""By the names of delimited text, its delimiter where a spec gives none."""
_QUOTING = (",", ";")
"""The delimiters of text whose cells may be in quotes (RFC 4180) where a spec does not say."""


def _known(name: str) -> str:
    if name not in FORMATS:
        raise PydanticKnownError(
            "literal_error", {"expected": one_of(dict.fromkeys([*_DELIMITERS, *FORMATS]))}
        )
    return name


class Source(BaseModel):
    """How the raw data is laid out. It does not change which features a value becomes."""

    model_config = FROZEN

    format: Annotated[str, AfterValidator(_known)]
    """The format of files whose name does not tell it by its suffix."""
    delimiter: str = ","
    """The one ASCII character between two cells; delimited text only."""
    header: bool = True
    """Whether the first line names the columns; delimited text only."""
    quote: bool = False
    """Whether a cell may stand in double quotes, where `""` is a quote and newlines are text. Where a spec
    does not say: with a comma or semicolon as delimiter."""
    columns: Names = ()
    """The names of all columns in their order: given if and only if `header` is false."""
    ignore: Names = ()
    """Columns that no field reads, but that rows sent for scoring may carry; not in libsvm."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        """Complete the settings of delimited text by its name and delimiter."""
        name = given.get("format") if isinstance(given, dict) else None
        if not isinstance(name, str) or name not in _DELIMITERS:
            return given
        delimiter = given.get("delimiter", _DELIMITERS[name])
        known = {"delimiter": delimiter, "quote": delimiter in _QUOTING}
        return {**known, **given, "format": "delimited"}

    @model_validator(mode="after")
    def _check(self) -> Self:
        known = FORMATS[self.format].keys
        for key in ("delimiter", "header", "quote", "columns"):
            if key in self.model_fields_set and key not in known:
                raise misfit((key,), f"only delimited text has it, not format {self.format}; remove it")
        if self.ignore and "ignore" not in known:
            raise misfit(("ignore",), f"{self.format} data has no named columns; remove it")
        check_delimiter(self.delimiter, quotes=True)
        if self.header and self.columns:
            raise misfit(("columns",), "the header names the columns; remove this list or set header: false")
        if not self.header and not self.columns:
            raise misfit((), "without a header, `columns` must list the names of all columns in order")
        return self

    def to_yaml(self) -> dict[str, Any]:
        """What a spec's text says of it."""
        return self.model_dump(mode="json", include={"format", *FORMATS[self.format].keys})
