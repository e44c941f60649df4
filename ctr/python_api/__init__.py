"""The functions of `import ctr`, with which Python programs train, evaluate and inspect data."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.python_api.evaluating import compare, evaluate, report
    from ctr.python_api.reading import check, draft_spec, read
    from ctr.python_api.training import suggest, train, tune

__getattr__ = lazy_package(__name__, __file__)
