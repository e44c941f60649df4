"""ctr: sparse logistic regression for click-through rates.

Importing this package loads nothing heavy: the command line has to answer `--help` at once.
"""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("ctr")
