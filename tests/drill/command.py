"""A training job in a process of its own, which may be killed: `python -m tests.drill.command ORDER`.

It does what `ctr train` does, and keeps the store, so that it can be compared with the ledger.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
from contextlib import closing
from pathlib import Path
from threading import Event

from ctr.distributed.checkpointing import CheckpointSettings
from ctr.distributed.run import StoreSettings, train_distributed
from ctr.errors import CtrError
from ctr.ps import RedisStore
from tests.drill.evidence import sums_in
from tests.drill.process import Order, Outcome


def carry_out(order: Order) -> Outcome:
    """Train."""
    checkpoints = CheckpointSettings(order.checkpoint, order.checkpoint_s)
    settings = StoreSettings(order.url, checkpoints, order.resume, order.lease_s)
    try:
        trained, facts = train_distributed(
            order.job, order.job.open_source(), settings, start=None, stop=Event()
        )
        with closing(trained.store) as store:
            assert isinstance(store, RedisStore)
            sums = sums_in(store)
    except CtrError as error:
        return Outcome(refusal=str(error))
    return Outcome(
        sums=sums,
        state=trained.state,
        examples=trained.result.examples,
        checkpoints=facts.checkpoints,
        dead_workers=tuple(facts.dead_workers),
    )


def main(path: Path) -> None:
    """Write the outcome, in one step."""
    faulthandler.register(signal.SIGUSR1)  # where it hangs, if it does
    order = pickle.loads(path.read_bytes())
    new = order.outcome.with_suffix(".new")
    new.write_bytes(pickle.dumps(carry_out(order)))
    os.replace(new, order.outcome)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
