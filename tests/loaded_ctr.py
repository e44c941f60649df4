"""`python -m tests.loaded_ctr workers FILE`: a fork server that has loaded commands, not only workers.

Tests fork hundreds of commands from it, each of which would load them for itself.
"""

from __future__ import annotations

from importlib import import_module

from ctr.cli.app import main
from ctr.cli.commands import command_line

# Not `ctr.api.app`: Prometheus looks for other processes of a server when it is imported.
MODULES = (
    "ctr.api.connections",
    "ctr.api.requests",
    "ctr.jobs.training.distributed",
    "ctr.jobs.training.job",
    "ctr.weights",
    "fastapi",
    "fastapi_offline",
)


def load() -> None:
    """Load the commands."""
    for command in ("train", "serve", "features", "ps", "worker"):
        command_line(command, listed=False)
    for module in MODULES:
        import_module(module)


if __name__ == "__main__":  # processes that a fork starts anew import this module, too
    load()
    main()
