"""Named records that several processes read and change together: the windows of servers."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.ps.records.creation import Change, Record
    from ctr.ps.records.record_store import RecordStore

__getattr__ = lazy_package(__name__, __file__)
