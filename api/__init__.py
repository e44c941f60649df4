"""The prediction endpoint: a model behind HTTP."""

from ctr.api.server import serve
