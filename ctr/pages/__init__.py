"""Reports on evaluated models, as one HTML page that opens offline."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.pages.page import EvaluatedModel, require_report, write_report

__getattr__ = lazy_package(__name__, __file__)
