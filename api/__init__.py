"""The prediction endpoint: a model behind HTTP."""

from api.app import create_app
from api.body import Limits
from api.server import serve

__all__ = ["Limits", "create_app", "serve"]
