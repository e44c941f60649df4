"""Click logs drawn from known models."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_face

if TYPE_CHECKING:
    from ctr.synth.ads import AD_COLUMNS, ad_rows
    from ctr.synth.installs import FIRST_DAY, INSTALL_COLUMNS, install_rows
    from ctr.synth.log import write_click_log
    from ctr.synth.matrix import sparse_rows

__getattr__ = lazy_face(__name__, __file__)
