"""Columns with types, read as blocks of cells: Parquet, Arrow, tables in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.features.tables.arrow import ArrowReader, TableReader, stream_of
    from ctr.features.tables.category_types import check_categories, float_categories
    from ctr.features.tables.column_text import json_columns
    from ctr.features.tables.parquet import ParquetReader

# Lazy: each loads a part of Arrow that only its format needs.
__getattr__ = lazy_package(__name__, __file__)
