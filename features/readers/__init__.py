"""Which reader a file needs, which of its rows are chosen, and what is done with bad ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctr.features.readers.bad_rows import FAIL, SKIP, BadRowHandler, BadRowPolicy, BadRows, too_many
from ctr.features.readers.opening import format_of, open_reader
from ctr.features.readers.raw_files import RawFiles
from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.features.readers.condition import RowChoice
    from ctr.features.readers.file_reader import SomeRowsPiece
    from ctr.features.readers.splits import SplitRows, count_splits, file_splits, follow_lines, splits_at

# Lazy, as they load kernels that compare texts, which a hashed data set does not need.
__getattr__ = lazy_package(__name__, __file__)
