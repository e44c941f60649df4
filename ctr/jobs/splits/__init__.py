"""Raw files cut into splits, which many tasks of an engine read: to learn a spec, to write one data set."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.jobs.splits.build import upload_splits, write_splits
    from ctr.jobs.splits.fit import fit_splits
    from ctr.jobs.splits.reach import require_reach

__getattr__ = lazy_package(__name__, __file__)
