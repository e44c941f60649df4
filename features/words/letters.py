"""Which characters are letters, and which of them are lower-case forms of others: one table for all time."""

from __future__ import annotations

import unicodedata
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ctr.features.words.letter_kernels import CODES, IN_WORDS

# What Python knows of characters changes from version to version, and with it would the features of a model.
# Unicode 3.2 is in all of them, and what is said there of a character does not change any more.
_UNICODE = unicodedata.ucd_3_2_0
_SYMBOLS = ((0x2000, 0x2BFF), (0x2E00, 0x2E7F), (0xFE00, 0xFE1F), (0x1D000, 0x1D3FF), (0x1F000, 0x1FAFF))


@cache
def letters() -> NDArray[np.uint32]:
    """uint32[CODES]: of each code point below, its lower-case form, and IN_WORDS if it is part of words."""
    table = np.array([_lower(code) for code in range(CODES)], np.uint32)
    table |= np.array([_is_in_words(code) for code in range(CODES)], np.uint32) * np.uint32(IN_WORDS)
    return table


def _lower(code: int) -> int:
    """The lower-case form of a character, if Unicode 3.2 has it; without regard to what stands beside it."""
    return code if _UNICODE.category(chr(code)) == "Cn" else ord(chr(code).lower()[0])


def _is_in_words(code: int) -> bool:
    """Letters, marks and digits; characters younger than Unicode 3.2, except in blocks of symbols."""
    if any(first <= code <= last for first, last in _SYMBOLS):
        return False
    kind = _UNICODE.category(chr(code))
    return kind[0] in "LMN" or (kind == "Cn" and code >= 0x80)
