"""Columns with types, read as blocks of cells: Parquet, Arrow, tables in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctr.lazy import lazy_face

if TYPE_CHECKING:
    from features.tables.arrow import ArrowReader
    from features.tables.category_types import check_categories, float_categories
    from features.tables.parquet import ParquetReader
    from features.tables.table import TableReader

# Each loads a part of Arrow that only its format needs.
__getattr__ = lazy_face(__name__, __file__)
