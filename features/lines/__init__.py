"""Files whose rows are lines, read as blocks of cells: delimited text, JSON lines, libsvm, VW."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.features.lines.delimited import DelimitedReader, DelimitedRows, Labels
    from ctr.features.lines.json_lines import JsonLinesReader
    from ctr.features.lines.json_request import JsonRequests, RequestRows
    from ctr.features.lines.line_reader import LibsvmReader, VwReader

# Lazy: each loads kernels that only its format needs.
__getattr__ = lazy_package(__name__, __file__)
