"""The search for useful crosses of a spec's fields, by learning each on top of a frozen model."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.crosses.search import MOST_CROSSES, MOST_ROWS, suggest_crosses
    from ctr.crosses.suggestion import Chosen, Suggestion

__getattr__ = lazy_package(__name__, __file__)
