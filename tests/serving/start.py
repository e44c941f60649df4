"""How long a server takes to start, and how much memory it needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.serving.models import rows_of
from tests.serving.server import Server
from tests.serving.table import Table

MB = 1e6


def start_and_memory(models: Sequence[Path], table: Table) -> None:
    """A model of 64 MB: how long a start takes, and how much memory each process."""
    Server("--model", models[0]).end()  # compiles what was not
    starts, memories = [], []
    for workers in (1, 2, 3):
        server = Server("--model", models[0], "--workers", workers)
        starts.append(server.ready_s)
        for message_ in (rows_of(1), rows_of(100)):
            server.client.post("/v1/predict", json={"rows": message_}).raise_for_status()
        memories.append(server.memory())
        server.end()
    size = sum(path.stat().st_size for path in models[0].glob("weights.*"))
    table.add("start to ready, 64 MB, warm kernels", "2 s", f"{starts[0]:.2f} s", holds=starts[0] <= 2)
    first, more = (memories[0] - size) / MB, (memories[2] - memories[0]) / 2 / MB
    table.add("memory beside the model", "250 MB", f"{first:.0f} MB", holds=first <= 250)
    table.add("memory of each further process", "80 MB", f"{more:.0f} MB", holds=more <= 80)
