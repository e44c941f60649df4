"""Fields with text values: categories, lists of them, and texts of words."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ctr.features.spec.fields import InputField, Name, Sizes, check_delimiter, misfit

_Most = Annotated[int, Field(ge=1)]

KNOWN = "known"
"""What such a field learns: the hashes, with seed 0, of the values with a feature of their own, as a table
(see `ctr.features.words.counts.known_table`)."""


class WordField(InputField):
    """Fields of text: which values have features of their own."""

    min_count: Annotated[int, Field(ge=2)] | None = None
    """Values in fewer rows than this are rare."""
    others: Literal["feature", "missing"] | None = None
    """What rare and unknown values become: one feature for all of them (also if None), or missing values."""

    @property
    def learns(self) -> tuple[str, ...]:
        return () if self.min_count is None else (KNOWN,)

    def check(self) -> None:
        if self.others is not None and not self.learns:
            raise misfit(("others",), "all values are features of their own here; add min_count")


class ValueField(WordField):
    """Fields of distinct values, which these keys change, in this order."""

    lower: bool = False
    """Whether values are converted to lower case; see `ctr.features.words.letters`."""
    prefix: Annotated[int, Field(ge=1)] | None = None
    """Keeps only this many characters from the start."""
    vocabulary: Name | None = None
    """The path of a file with one value per line; others are unknown. Relative to the spec's folder."""

    @property
    def learns(self) -> tuple[str, ...]:
        return () if self.min_count is None and self.vocabulary is None else (KNOWN,)

    @property
    def is_plain(self) -> bool:
        """Whether values are used unchanged."""
        return not self.lower and self.prefix is None


class CategoryField(ValueField):
    """A column in which every distinct text is a feature."""

    type: Literal["category"]

    @property
    def step(self) -> str:
        return "shaped" if self.lower or self.prefix or self.learns else "category"


class ListField(ValueField):
    """A column with any number of categories per row."""

    type: Literal["list"]
    delimiter: str | None = None
    """The ASCII character between two of them; None: only lists in Parquet and JSON have several."""
    counts: bool = False
    """Whether a category may have a value, as in `word:2`; without, it is 1."""
    most: _Most | None = None
    """Keeps only this many distinct ones of a row, from the start."""

    several: ClassVar[bool] = True

    @property
    def at_most(self) -> int | None:
        return self.most

    def check(self) -> None:
        super().check()
        if self.delimiter is not None:
            check_delimiter(self.delimiter, quotes=False)
        if self.delimiter == ":" and self.counts:
            raise misfit(("delimiter",), "with `counts` a colon is what a count stands behind")


class TextField(WordField):
    """A column of text, whose features are the n-grams of its words and characters."""

    type: Literal["text"]
    words: Sizes = ()
    """Sizes of n-grams of words."""
    chars: Sizes = ()
    """Sizes of n-grams of characters within a word, with a space before and after it."""
    most: _Most | None = None
    """Keeps only this many distinct n-grams of a row, from the start."""

    several: ClassVar[bool] = True

    @property
    def at_most(self) -> int | None:
        return self.most

    def check(self) -> None:
        super().check()
        if not self.words and not self.chars:
            raise misfit((), "`words` or `chars` is missing: add words: [1, 2] for words and pairs of them")
