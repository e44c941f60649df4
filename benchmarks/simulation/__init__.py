"""A job on a cluster that is not there: the real board and session code, on virtual time."""
