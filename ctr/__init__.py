"""ctr: sparse logistic regression for click-through rates.

Importing this package loads nothing heavy, so that `ctr --help` is fast: its public names load their modules
on first use.
"""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package as _lazy_package

if TYPE_CHECKING:
    from ctr import datasets, mlflow, spark
    from ctr.classifier import FTRLClassifier
    from ctr.features import load_spec
    from ctr.model import Model, load_model
    from ctr.python_api import check, compare, draft_spec, evaluate, read, report, suggest, train, tune

__version__ = "0.1.0"

__getattr__ = _lazy_package(__name__, __file__)


def __dir__() -> list[str]:
    """The names that a notebook completes. `help` loads all of them, so the estimator needs scikit-learn."""
    from importlib.util import find_spec

    functions = ["check", "compare", "draft_spec", "evaluate", "load_model", "load_spec", "read", "report"]
    packages = ["datasets", "mlflow", "spark"]
    estimators = ["FTRLClassifier"] if find_spec("sklearn") else []
    return [*estimators, "Model", "__version__", *functions, *packages, "suggest", "train", "tune"]
