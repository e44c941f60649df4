"""The prediction endpoint: a model behind HTTP, the application of it, and clients."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.api.app import create_app
    from ctr.api.client import Answer, AsyncClient, Client
    from ctr.api.server import serve

__getattr__ = lazy_package(__name__, __file__)
