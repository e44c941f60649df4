"""ctr: sparse logistic regression for click-through rates.

Importing this package loads nothing heavy: the command line has to answer `--help` at once.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
