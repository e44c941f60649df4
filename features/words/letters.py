"""Which characters are parts of words, and their lower-case forms: a table that never changes."""

from __future__ import annotations

import unicodedata
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ctr.features.words.letter_kernels import CODES, IN_WORDS

# Python's data on characters change from version to version, and the features of a model would change with
# them. All versions include Unicode 3.2, whose data never change.
_UNICODE = unicodedata.ucd_3_2_0
_SYMBOLS = ((0x2000, 0x2BFF), (0x2E00, 0x2E7F), (0xFE00, 0xFE1F), (0x1D000, 0x1D3FF), (0x1F000, 0x1FAFF))


@cache
def letters() -> NDArray[np.uint32]:
    """uint32[CODES]: the lower-case form of each code point, plus IN_WORDS if it is part of words."""
    table = np.array([_lower(code) for code in range(CODES)], np.uint32)
    table |= np.array([_is_in_words(code) for code in range(CODES)], np.uint32) * np.uint32(IN_WORDS)
    return table


def _lower(code: int) -> int:
    """The lower-case form of a character, whatever is beside it; itself if Unicode 3.2 does not have it."""
    return code if _UNICODE.category(chr(code)) == "Cn" else ord(chr(code).lower()[0])


def _is_in_words(code: int) -> bool:
    """Whether it is a letter, mark or digit, or newer than Unicode 3.2, and not in a block of symbols."""
    if any(first <= code <= last for first, last in _SYMBOLS):
        return False
    kind = _UNICODE.category(chr(code))
    return kind[0] in "LMN" or (kind == "Cn" and code >= 0x80)
