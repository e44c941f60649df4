"""ctr: sparse logistic regression for click-through rates.

Importing this package loads nothing heavy: the command line has to answer `--help` at once.
"""

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version  # takes longer than everything that `ctr --help` needs

        return version("ctr")
    raise AttributeError(f"module 'ctr' has no attribute {name!r}")
