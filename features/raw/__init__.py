"""Raw files read with a spec: their examples, what the spec's steps learn from them, their rows as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.features.raw.first_pass import FirstPass, any_chosen, changed_vocabulary, fit, learn
    from ctr.features.raw.preview import absence_warnings, absent_columns
    from ctr.features.raw.row_texts import (
        RowTexts,
        batches_with_texts,
        first_rows,
        read_table,
        require_columns_beside,
    )
    from ctr.features.raw.source import RawSource
    from ctr.features.raw.split_pass import SplitPass

# Lazy: predictions for rows in memory neither learn nor read files.
__getattr__ = lazy_package(__name__, __file__)
