"""The weights of a model as tables, with the texts of their features."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.weights.comparison import WeightDifference, difference, same_slots, spec_changes
    from ctr.weights.names import names_of_values, with_names
    from ctr.weights.table import BETWEEN, BIAS, largest, texts_of, weight_table

__getattr__ = lazy_package(__name__, __file__)
