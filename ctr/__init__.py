"""ctr: sparse logistic regression for click-through rates.

Importing this package loads nothing heavy: the command line has to answer `--help` at once.
"""

from ctr.siblings import require_siblings as _require_siblings

__version__ = "0.1.0"

_require_siblings("features", "ps")  # api by `ctr serve`, which alone needs it
