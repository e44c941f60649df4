"""Which reader a file has, which rows of it are wanted, and what becomes of bad ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctr.lazy import lazy_face
from features.readers.bad_rows import EARLY_ROWS, SKIPPING, BadRows, Quarantine, require_few, too_many
from features.readers.opening import format_of, open_reader

if TYPE_CHECKING:
    from features.readers.condition import Condition, RowChoice

# Kernels that compare texts: a hashed data set needs none.
__getattr__ = lazy_face(__name__, __file__)
