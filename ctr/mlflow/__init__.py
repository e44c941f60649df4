"""Models of ctr in MLflow: logged, registered, loaded, and served from there."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.mlflow.flavour import load_model, log_model, save_model
    from ctr.mlflow.registered import RegisteredModel

__getattr__ = lazy_package(__name__, __file__)
