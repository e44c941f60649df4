"""Synthetic click logs, drawn from known models."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.synth.log import write_click_log
    from ctr.synth.rows import AD_COLUMNS, FIRST_DAY, INSTALL_COLUMNS, ad_rows, install_rows, sparse_rows

__getattr__ = lazy_package(__name__, __file__)
