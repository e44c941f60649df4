"""Which crosses of a spec's fields are worth having, found by learning each on top of a frozen model."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.crosses.search import MOST_CROSSES, Chosen
    from ctr.crosses.suggestion import MOST_ROWS, Suggestion, suggest_crosses

__getattr__ = lazy_package(__name__, __file__)
