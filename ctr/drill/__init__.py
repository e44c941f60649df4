"""Breaks clusters on purpose while they train, keeps a ledger, and proves that every update counted once."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_face

if TYPE_CHECKING:
    from ctr.drill.drill import run_drill
    from ctr.drill.fault_plan import FAULTS
    from ctr.drill.ledger import in_ledger
    from ctr.drill.settings import DrillSettings

__getattr__ = lazy_face(__name__, __file__)
