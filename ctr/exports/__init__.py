"""Models as files for other programs: tables of weights, a sparse matrix, ONNX, Vowpal Wabbit."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.exports.formats import export, format_of, require_exportable

__getattr__ = lazy_package(__name__, __file__)
