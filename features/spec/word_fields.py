"""The fields whose values are text: categories, lists of them, and texts of words."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ctr.features.spec.fields import InputField, Name, Sizes, check_delimiter, misfit

_Most = Annotated[int, Field(ge=1)]

KNOWN = "known"
"""What such a field learns: the hashes with seed 0 of what has a feature of its own, as a table (see
`ctr.features.words.counts.known_table`)."""


class WordField(InputField):
    """What fields of text have in common: which of their features are kept apart."""

    min_count: Annotated[int, Field(ge=2)] | None = None
    """Values in fewer rows are rare."""
    others: Literal["feature", "missing"] | None = None
    """What rare and unknown values become: one feature for all (None: the same), or missing values."""

    @property
    def learns(self) -> tuple[str, ...]:
        return () if self.min_count is None else (KNOWN,)

    def check(self) -> None:
        if self.others is not None and not self.learns:
            raise misfit(("others",), "all values are features of their own here; add min_count")


class ValueField(WordField):
    """Fields of distinct values, shaped by these keys in this order."""

    lower: bool = False
    """In lower case; see `ctr.features.words.letters`."""
    prefix: Annotated[int, Field(ge=1)] | None = None
    """Keeps only this many characters, from the start."""
    vocabulary: Name | None = None
    """The path of a file with one value per line: others are unknown. Relative to the folder of the spec."""

    @property
    def learns(self) -> tuple[str, ...]:
        return () if self.min_count is None and self.vocabulary is None else (KNOWN,)

    @property
    def is_plain(self) -> bool:
        """Whether values keep their shape."""
        return not self.lower and self.prefix is None


class CategoryField(ValueField):
    """A column whose every distinct text is a feature."""

    type: Literal["category"]

    @property
    def step(self) -> str:
        return "shaped" if self.lower or self.prefix or self.learns else "category"


class ListField(ValueField):
    """A column of any number of categories."""

    type: Literal["list"]
    delimiter: str | None = None
    """The one ASCII character between two of them; None: only lists in Parquet and JSON have several."""
    counts: bool = False
    """Whether one may have a value: `word:2`; without one it is 1."""
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
    """Sizes of n-grams of characters within a word, which has a space before and after it."""
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
