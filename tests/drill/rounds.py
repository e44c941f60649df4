"""`Round`: what happens to one job, drawn from the drill's seed and the round's number alone."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from ctr.workers.description import Consistency

CONSISTENCIES: tuple[Consistency, ...] = ("bsp", "ssp", "asp")


@dataclass(frozen=True, slots=True)
class Servers:
    """The redis-servers of a round, with the arguments of `BreakableRedis`."""

    nodes: int
    replicas: int
    config: Mapping[str, str]


_AOF = {"appendonly": "yes", "appendfsync": "always"}
SERVERS = {
    "cluster": Servers(3, 1, {"cluster-node-timeout": "2000"}),
    "aof": Servers(1, 0, _AOF),
    "aof cluster": Servers(3, 0, _AOF),
    "snapshot": Servers(1, 1, {}),
    "snapshot cluster": Servers(2, 0, {}),
}
"""Replicas of a cluster take over, that of a single primary only follows. Snapshots are written on demand."""

PAIRS = (
    ("cluster", "kill primary", "kill worker"),
    ("cluster", "kill primary", "freeze worker"),
    ("cluster", "kill primary", "kill command"),
    ("cluster", "kill primary", "freeze command"),
    ("cluster", "kill primary", "reshard"),
    ("cluster", "kill primary", "read"),
    ("cluster", "kill lagging primary", "kill worker"),
    ("cluster", "kill lagging primary", "kill command"),
    ("cluster", "kill lagging primary", "reshard"),
    ("cluster", "kill lagging primary", "read"),
    ("cluster", "freeze primary", "kill worker"),
    ("cluster", "freeze primary", "freeze worker"),
    ("cluster", "freeze primary", "kill command"),
    ("cluster", "freeze primary", "reshard"),
    ("cluster", "freeze primary and replica", "kill worker"),
    ("cluster", "freeze primary and replica", "reshard"),
    ("cluster", "freeze replica", "kill primary"),
    ("cluster", "freeze replica", "kill worker"),
    ("cluster", "reshard", "kill worker"),
    ("cluster", "reshard", "kill command"),
    ("aof", "restart primary", "kill worker"),
    ("aof", "restart primary", "kill command"),
    ("aof", "restart primary", "step clock"),
    ("aof", "freeze primary", "step clock"),
    ("aof", "step clock", "kill worker"),
    ("aof", "step clock", "kill command"),
    ("aof", "step clock", "freeze worker"),
    ("aof", "step clock", "freeze command"),
    ("aof cluster", "restart primary", "kill worker"),
    ("aof cluster", "restart primary", "reshard"),
    ("aof cluster", "restart primary", "restart primary"),
    ("snapshot", "restart from snapshot", "kill worker"),
    ("snapshot", "restart from snapshot", "kill command"),
    ("snapshot", "restart from snapshot", "read"),
    ("snapshot", "restart during WAIT", "read"),
    ("snapshot", "restart during WAIT", "kill worker"),
    ("snapshot", "restart during WAIT", "freeze worker"),
    ("snapshot", "freeze replica", "step clock"),
    ("snapshot cluster", "restart from snapshot", "kill worker"),
    ("snapshot cluster", "restart from snapshot", "freeze worker"),
)
"""Servers, the first fault, and one that strikes soon after the first has begun."""

IN_TURN = (
    *("kill primary", "kill lagging primary", "freeze primary", "freeze primary and replica"),
    *("kill worker", "reshard to new node"),
)
"""Faults of a cluster that strike one job, each when it has recovered from the one before."""
_LAST = "fill memory"
"""After them: it ends the run, so that the job is resumed."""
_EVERY = 8
"""One of so many rounds has the faults in turn, the first of all among them; the others have pairs."""

_LOSES = {"restart from snapshot", "restart during WAIT"}
_FAILS_OVER = {"kill primary", "kill lagging primary", "freeze primary"}
_SILENCES_WORKER = {"kill worker", "freeze worker"}


@dataclass(frozen=True, slots=True)
class Round:
    """One job and its faults."""

    seed: int
    number: int
    servers: str
    faults: tuple[str, ...]
    """Two at about the same time; or, `in_turn`, any number."""
    consistency: Consistency
    additive: bool
    """Whether every chunk adds the same, whenever it is trained: see `ADDITIVE` in `tests/ctr`."""
    bits: int
    workers: int
    remote: bool
    """Whether one more worker is not a child of the command that leads the job."""
    shard_chunks: int
    checkpoint_s: float
    """Between two checkpoints."""
    tls: bool
    fraction: float
    """Of the job, when the first fault strikes."""
    gap_s: float
    """From there to the second of a pair."""
    in_turn: bool = False

    def chances(self, fault: int) -> random.Random:
        """What the first fault (0), the second (1) and so on draw their victims and durations from."""
        return random.Random(f"{self.seed}:{self.number}:{fault}")

    def begins(self, fault: int) -> float:
        """Of the job: when this one of faults in turn strikes at the earliest."""
        return 0.05 + 0.8 * fault / len(self.faults)

    @property
    def may_refuse(self) -> bool:
        """Whether pushes can be lost for good, so that the job may end with that error.

        Workers keep what replicas do not have yet, and in a BSP job nobody else trains it again.
        """
        if self.in_turn:
            return False
        struck = set(self.faults)
        silenced = bool(struck & _SILENCES_WORKER)
        if struck & _LOSES or (silenced and "kill lagging primary" in struck):
            return True
        return self.consistency == "bsp" and silenced and bool(struck & _FAILS_OVER)

    def __str__(self) -> str:
        job = [self.consistency, f"2^{self.bits} slots", f"{self.workers} workers"]
        job += ["one remote"] * self.remote + ["additive"] * self.additive + ["TLS"] * self.tls
        return f"{self.servers}: {(', ' if self.in_turn else ' + ').join(self.faults)} ({', '.join(job)})"


def draw_round(seed: int, number: int) -> Round:
    """Round `number`, from 1.

    One in eight has all faults in turn, in an order of its own. As many others as there are pairs, one after
    the other, have each pair once.
    """
    chosen = random.Random(f"{seed}:{number}")
    before, of_pairs = divmod(number - 1, _EVERY)
    if in_turn := of_pairs == 0:
        servers = "cluster"
        faults: tuple[str, ...] = (*chosen.sample(IN_TURN, len(IN_TURN)), _LAST)
        consistency = CONSISTENCIES[1 - before % 2]  # SSP and BSP by turns
    else:
        cycle, place = divmod(number - 2 - before, len(PAIRS))
        servers, *pair = random.Random(f"{seed}:pairs:{cycle}").sample(PAIRS, len(PAIRS))[place]
        faults = tuple(pair)
        consistency = chosen.choice(CONSISTENCIES)
    return Round(
        seed=seed,
        number=number,
        servers=servers,
        faults=faults,
        consistency=consistency,
        additive=consistency != "bsp" and chosen.random() < 0.5,
        bits=chosen.choice((16, 17, 18, 18)),
        workers=3 if in_turn else chosen.choice((2, 3)),
        remote=not in_turn and chosen.random() < 0.5,
        shard_chunks=1 if consistency == "bsp" else chosen.choice((1, 2, 4, 8)),
        checkpoint_s=chosen.choice((0.5, 1.0, 2.0)),
        tls=SERVERS[servers].nodes == 1 and chosen.random() < 0.4,
        fraction=chosen.uniform(0.1, 0.35),
        gap_s=chosen.uniform(0.0, 2.5),
        in_turn=in_turn,
    )
