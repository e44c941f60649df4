"""Fast lookups of the weights of a few slots: of a fixed model, or of one that is being trained."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.lookup.live import LiveWeights
    from ctr.lookup.lookup import DENSE_SLOTS, WeightLookup, lookup_of, shared_lookup_of

__getattr__ = lazy_package(__name__, __file__)
