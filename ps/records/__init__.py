"""Records by name that several processes read and change together: the windows of servers."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_face

if TYPE_CHECKING:
    from ctr.ps.records.creation import Beginning, Record
    from ctr.ps.records.record_store import Change, RecordStore

__getattr__ = lazy_face(__name__, __file__)
