"""Bytes of text to cells and numbers."""

from features.text.cells import Cells, cells_of_rows
from features.text.file_kind import COMPRESSED, is_parquet
from features.text.number_kernels import LOG_CELLS, log_bucket, log_cells, numbers_of_column
from features.text.scanner_kernels import (
    OPEN_QUOTE,
    TEXT_AFTER_QUOTE,
    WRONG_COLUMNS,
    count_lines,
    scan_plain,
    scan_quoted,
)
from features.text.text_file import READ_BYTES, TextFile
from features.text.value_text import text_of_column

__all__ = [
    "COMPRESSED",
    "LOG_CELLS",
    "OPEN_QUOTE",
    "READ_BYTES",
    "TEXT_AFTER_QUOTE",
    "WRONG_COLUMNS",
    "Cells",
    "TextFile",
    "cells_of_rows",
    "count_lines",
    "is_parquet",
    "log_bucket",
    "log_cells",
    "numbers_of_column",
    "scan_plain",
    "scan_quoted",
    "text_of_column",
]
