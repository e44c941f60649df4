"""`RowStatus`: what can come of a row, in every reader and in the transform.

Kernels take the numbers as constants, such as `BAD_NUMBER = RowStatus.NUMBER.value`.
"""

from __future__ import annotations

from enum import IntEnum, unique


@unique
class RowStatus(IntEnum):
    """What came of a row; everything but OK keeps it out of the batch."""

    OK = 0
    COLUMNS = 1
    """It has more or fewer columns than it should."""
    LABEL = 2
    WEIGHT = 3
    NUMBER = 4
    LABEL_MINUS = 5
    """Its label is -1, but those before it are 0 or 1."""
    LABEL_ZERO = 6
    """Its label is 0, but those before it are -1 or 1."""
    INDEX = 7
    VALUE = 8
    QUERY = 9
    NAMED = 10
    TEXT_AFTER_QUOTE = 16
    OPEN_QUOTE = 17
    LATE = 21
    """It is earlier than a row before it, which windows do not allow."""
    SINCE = 22
    """The time from which its age is counted is not valid; the column is that of the time whose age it is."""
    UNSERVED = 23
    """It lacks the windows' features that it was served with."""
    OTHER_WINDOWS = 24
    """It has such features, of other windows than the spec's."""
    FEATURES = 30
    """It has more features than a row may have."""
    TIME = 31
    JSON = 32
    """It is not a JSON object; the column is the byte of its line."""
    LIST = 33
    """It has a list where its field takes one value."""
    NESTED = 34
    NOT_FINITE = 35
    """It has a JSON number that float64 does not hold."""
    ELSEWHERE = 64
    """It does not meet the condition that chooses rows."""

    @property
    def is_split(self) -> bool:
        """Whether the row has its cells: false where the reader could not split it, or left it out."""
        return self not in _NOT_SPLIT


_NOT_SPLIT = frozenset(
    {
        RowStatus.COLUMNS,
        RowStatus.TEXT_AFTER_QUOTE,
        RowStatus.OPEN_QUOTE,
        RowStatus.JSON,
        RowStatus.LIST,
        RowStatus.NESTED,
        RowStatus.NOT_FINITE,
        RowStatus.ELSEWHERE,
    }
)
