"""Spark DataFrames: hashed features, predictions, fitted specs and models of them.

PySpark is loaded by the functions that need it: `pip install 'ctr[spark]'`.
"""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.spark.frames import predict, transform
    from ctr.spark.learning import fit
    from ctr.spark.training import train

__getattr__ = lazy_package(__name__, __file__)
