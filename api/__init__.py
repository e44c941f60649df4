"""The prediction endpoint: a model behind HTTP."""

from api.server import serve
