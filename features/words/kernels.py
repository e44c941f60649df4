"""From the text of categories, and of lists of them, to hashes, by the rules of a field."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.column_kernels import TextColumn
from ctr.features.text.hashing import xxh64
from ctr.features.text.number_kernels import NUMBER, parse_number, stripped
from ctr.features.text.spelling_kernels import AS_IT_IS, FALSE, NO_VALUE, TRUE, may_be_respelt, spelling
from ctr.features.words.count_kernels import is_known
from ctr.features.words.letter_kernels import end_of_prefix, write_lower
from ctr.features.words.token_kernels import Features, add_feature
from ctr.jit import njit

UNIT_SEPARATOR = 0x1F  # between the elements of a list

_U0, _U1 = np.uint64(0), np.uint64(1)
_SPACE, _TAB, _COLON = (np.uint8(ord(c)) for c in " \t:")
_SEPARATOR = np.uint8(UNIT_SEPARATOR)
_ONE, _ZERO = np.uint8(ord("1")), np.uint8(ord("0"))


class Rule(NamedTuple):
    """How a field turns a value into a feature."""

    seed: np.uint64
    lower: bool
    prefix: int
    """How many characters are used; 0: all."""
    letters: NDArray[np.uint32]
    """The table of `letters`; empty if it is not needed."""
    chosen: bool
    """Whether only the values in `known` get their own features."""
    known: NDArray[np.uint64]
    """Their hashes with seed 0, for `is_known`."""
    drops: bool
    """Whether other values have no feature; if not, they all have the one with the hash `others`."""
    others: np.uint64


@njit(nogil=True, cache=True)
def hash_values(
    column: TextColumn,
    rule: Rule,
    scratch: NDArray[np.uint8],
    hashes: NDArray[np.uint64],
    present: NDArray[np.bool_],
) -> None:
    """Writes the hash of each cell of a column, and whether it has a feature.

    `scratch` has room for the longest cell.
    """
    buffer, starts, ends, status = column
    for i in range(starts.size):
        start, end = np.uint64(starts[i]), np.uint64(ends[i])
        present[i] = False
        if status[i] == 0 and start != end:
            present[i], hashes[i] = _hash_value(buffer, start, end, rule, scratch)


@njit(nogil=True, cache=True)
def hash_lists(
    column: TextColumn,
    delimiter: np.uint8,
    counts: bool,
    rule: Rule,
    scratch: NDArray[np.uint8],
    bounds: NDArray[np.int64],
    features: Features,
) -> None:
    """Writes the features of cells with lists, split at `delimiter` and at 0x1F; equal ones are added up.

    Cell `i` has the features `bounds[i]..bounds[i + 1] - 1`. With `counts`, an element may end with a colon
    and its value. `scratch`: see `hash_values`.
    """
    buffer, starts, ends, status = column
    n = 0
    bounds[0] = 0
    for i in range(starts.size):
        first = n
        at, end = np.uint64(starts[i]), np.uint64(ends[i])
        while status[i] == 0 and at < end:
            stop = at
            while stop < end and buffer[stop] != delimiter and buffer[stop] != _SEPARATOR:
                stop += _U1
            start, last, value = _element(buffer, at, stop, counts)
            at = stop + _U1
            if start == last or value == 0:
                continue
            is_there, hashed = _hash_value(buffer, start, last, rule, scratch)
            if is_there:
                n = add_feature(hashed, value, first, n, features)
        bounds[i + 1] = n


@njit(nogil=True, cache=True)
def choose(own: np.uint64, plain: np.uint64, rule: Rule) -> tuple[bool, np.uint64]:
    """Whether a value has a feature, and its hash; `own` is the value's hash with the rule's seed, `plain`
    that with seed 0."""
    if not rule.chosen or is_known(plain, rule.known):
        return True, own
    return not rule.drops, rule.others


@njit(nogil=True, cache=True)
def choose_all(
    own: NDArray[np.uint64], plain: NDArray[np.uint64], present: NDArray[np.bool_], rule: Rule
) -> None:
    """Applies `choose` to all values that are present, in place: `own` and `present` become its results."""
    known, drops, others = rule.known, rule.drops, rule.others
    for i in range(own.size):
        if present[i] and not is_known(plain[i], known):
            present[i], own[i] = not drops, others


@njit(nogil=True, cache=True)
def _hash_value(
    buffer: NDArray[np.uint8], start: np.uint64, end: np.uint64, rule: Rule, scratch: NDArray[np.uint8]
) -> tuple[bool, np.uint64]:
    """Whether the text `buffer[start:end]`, which is not empty, has a feature, and its hash."""
    kind = AS_IT_IS
    if may_be_respelt(buffer, start, end):
        kind, start, end = spelling(buffer, start, end)
        if kind == NO_VALUE:
            return False, _U0
        if kind in (TRUE, FALSE):
            scratch[0] = _ONE if kind == TRUE else _ZERO
            return _chosen(scratch, _U0, _U1, rule)
    if rule.prefix > 0:
        end = end_of_prefix(buffer, start, end, rule.prefix)
    if rule.lower:
        return _chosen(scratch, _U0, write_lower(buffer, start, end, rule.letters, scratch), rule)
    return _chosen(buffer, start, end, rule)


@njit(nogil=True, cache=True)
def _chosen(text: NDArray[np.uint8], start: np.uint64, end: np.uint64, rule: Rule) -> tuple[bool, np.uint64]:
    own = xxh64(text, start, end, rule.seed)
    return choose(own, xxh64(text, start, end, _U0) if rule.chosen else own, rule)


@njit(nogil=True, cache=True)
def _element(
    buffer: NDArray[np.uint8], start: np.uint64, end: np.uint64, counts: bool
) -> tuple[np.uint64, np.uint64, np.float32]:
    """Where the text of a list's element begins and ends, without blanks around it; its value."""
    start, end = stripped(buffer, start, end)
    if counts:
        colon = end
        while colon > start and buffer[colon - _U1] != _COLON:
            colon -= _U1
        if colon > start:
            kind, number = parse_number(buffer, colon, end)
            value = np.float32(number)
            if kind == NUMBER and np.isfinite(value):
                start, end = stripped(buffer, start, colon - _U1)
                return start, end, value
    return start, end, np.float32(1)
