"""The error tree. A leaf: it imports nothing, so every package may import it."""


class CtrError(Exception):
    """Root of every error that a user can cause or fix; its message is shown without a traceback."""


class SpecError(CtrError):
    """A feature spec is malformed, or does not fit the data it is applied to."""


class DataError(CtrError):
    """Input rows or files are missing, unreadable or malformed."""


class StoreError(CtrError):
    """A parameter store cannot be reached, refuses, or would lose updates."""


class ModelError(CtrError):
    """A model folder is missing, torn, of another format, or does not match its data."""
