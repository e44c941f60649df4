"""Put a server under load while versions change and things break: `make serve-drill`.

Prints what was asked and what was measured; the exit code is 1 when a request failed that should not have.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.serving.changes import changes
from tests.serving.models import save_models
from tests.serving.refusals import refusals
from tests.serving.start import start_and_memory
from tests.serving.table import Table


def main() -> int:
    """The exit code: 1 when something was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.serving", description=__doc__)
    parser.add_argument("--bad", type=int, default=1_000_000, help="so many bad requests")
    parser.add_argument("--away-s", type=float, default=60.0, help="seconds for which the registry is away")
    asked = parser.parse_args()
    table = Table()
    print(f"  {'':58}{'asked':>22}{'measured':>26}")
    with tempfile.TemporaryDirectory(prefix="ctr-serving-") as place:
        folder = Path(place)
        models = save_models(folder)
        start_and_memory(models, table)
        asyncio.run(changes(models, folder, asked.away_s, table))
        asyncio.run(refusals(models[0], asked.bad, table))
    return int(table.failed)


if __name__ == "__main__":
    sys.exit(main())
