"""Following quotes from any byte of a text, to find where rows begin.

Whether a newline ends a row depends on all quotes before it. Tasks that read pieces of a file in parallel do
not know the state in which their piece begins. So each follows its piece from every state, and the results
are joined afterwards (Mytkowicz et al. 2014, "Data-parallel finite-state machines"). After a few rows,
usually at most two different states are left, which cost twice as much as one.

`steps` has the next state from each state for every byte, in 6 bits, so that a step is a shift (Vognsen 2019,
"Shift-based DFAs"): no branch is mispredicted at the end of a cell.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit

_NEWLINE, _RETURN, _QUOTE = np.uint8(10), np.uint8(13), np.uint8(34)
_U6, _U63 = np.uint64(6), np.uint64(63)

ROW, NEXT_ROW, BLANK, CELL, IN_CELL, IN_QUOTES, AFTER_QUOTE, TO_LINE_END = range(8)
"""States. ROW: at the start of the first row, or of one after a blank row. NEXT_ROW: at the start of a row
after one with text. BLANK: in a row with only carriage returns so far. CELL: at the start of a later cell.
IN_CELL: in a cell without quotes. IN_QUOTES: in a cell with quotes. AFTER_QUOTE: after a quote in it, which
closes the cell or is doubled. TO_LINE_END: in text after a closing quote, up to the next newline."""
QUOTE_STATES = 8

# The next state from each of these states.
_OTHER = (IN_CELL, IN_CELL, IN_CELL, IN_CELL, IN_CELL, IN_QUOTES, TO_LINE_END, TO_LINE_END)
_AFTER = {
    '"': (IN_QUOTES, IN_QUOTES, IN_CELL, IN_QUOTES, IN_CELL, AFTER_QUOTE, IN_QUOTES, TO_LINE_END),
    "\r": (BLANK, BLANK, BLANK, IN_CELL, IN_CELL, IN_QUOTES, TO_LINE_END, TO_LINE_END),
    "\n": (ROW, ROW, ROW, NEXT_ROW, NEXT_ROW, IN_QUOTES, NEXT_ROW, NEXT_ROW),
}
_AFTER_DELIMITER = (CELL, CELL, CELL, CELL, CELL, IN_QUOTES, CELL, TO_LINE_END)


def quote_steps(delimiter: str) -> NDArray[np.uint64]:
    """uint64[256]: the argument `steps` of `follow_quotes`."""
    after = {**_AFTER, delimiter: _AFTER_DELIMITER}
    rows = (after.get(chr(byte), _OTHER) for byte in range(256))
    return np.array([sum(6 * state << 6 * at for at, state in enumerate(row)) for row in rows], np.uint64)


@njit(nogil=True, cache=True)
def follow_quotes(
    buffer: NDArray[np.uint8], size: int, state: int, steps: NDArray[np.uint64]
) -> tuple[np.intp, np.intp]:
    """The state after `buffer[:size]`, which begins in `state`, by the rules of `scan_quoted`.

    Also returns where the first row with text begins that directly follows another one; -1 if none does.
    """
    at, stop = np.uintp(0), np.uintp(size)
    now, next_row = _U6 * np.uint64(state), _U6 * np.uint64(NEXT_ROW)
    while at < stop:
        byte = buffer[at]
        if now == next_row and byte not in (_NEWLINE, _RETURN):
            break
        now = (steps[byte] >> now) & _U63
        at += np.uintp(1)
    first = np.intp(at) if at < stop else np.intp(-1)
    while at < stop:
        now = (steps[buffer[at]] >> now) & _U63
        at += np.uintp(1)
    return np.intp(now // _U6), first
