"""From bytes of text to cells and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctr.features.text.cells import Cells, cells_of_rows, encode_value, shown
from ctr.features.text.row_status import RowStatus
from ctr.features.text.value_text import BETWEEN_ELEMENTS
from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.features.text.cells import CodedCells, CodedColumns, Texts
    from ctr.features.text.column_kernels import TILE, TextColumn, hash_columns, parse_columns
    from ctr.features.text.file_kind import ARROW_FILE, ARROW_STREAM, COMPRESSED, PARQUET, is_compressed
    from ctr.features.text.hashing import hash_bytes
    from ctr.features.text.number_kernels import LOG_CELLS, log_cells
    from ctr.features.text.quote_kernels import QUOTE_STATES, ROW, follow_quotes, quote_steps
    from ctr.features.text.scanner_kernels import (
        count_lines,
        count_quoted,
        count_unquoted,
        scan_plain,
        scan_quoted,
    )
    from ctr.features.text.text_file import BYTE_ORDER_MARK, READ_BYTES, Lines, TextFile
    from ctr.features.text.time_text import Times, expected_time, times_of
    from ctr.features.text.value_text import DIGITS_BELOW, is_decimal, text_of_json

# Lazy: a JSON row needs nothing that splits files.
__getattr__ = lazy_package(__name__, __file__)
