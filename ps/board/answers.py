"""What the answers of a job board's keys mean."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from ctr.errors import StoreError
from ctr.ps.board.view import LEASE_S, BoardView, Job, JobState, RankView, ShardView, WorkerView
from ctr.ps.wire import BoardPart, Command, pairs

TIME: Command = (b"TIME",)


def milliseconds(time: Sequence[bytes]) -> int:
    """The answer to TIME, in ms since 1970."""
    return int(time[0]) * 1_000 + int(time[1]) // 1_000


def lease_end(until: bytes | None) -> int:
    """Until when the coordinator's lease lasts, in ms of the server's clock; 0 when there is none."""
    return int(until) if until is not None and until.isdigit() else 0


def number(score: bytes | None) -> int | None:
    """A score of a sorted set that holds whole numbers; None for a member that is not there."""
    return None if score is None else int(float(score))


def rounds(scores: Iterable[bytes | None]) -> tuple[int, ...]:
    """The marks of all ranks; -1 for none."""
    return tuple(-1 if score is None else int(float(score)) for score in scores)


def fact(found: bytes | None) -> bytes:
    """What a job's hash has from its creation on. Raises StoreError where it is not there."""
    if found is None:
        raise StoreError(
            "the job board is not whole: a key of it was deleted or overwritten. Remove what is left with "
            "`ctr ps drop`, and start again or resume from a checkpoint."
        )
    return found


def job_state(state: bytes | None) -> JobState:
    """As the board has it. Raises StoreError as `fact` does."""
    return cast(JobState, fact(state).decode())


JOB_FACTS = (b"launch", b"id", b"lease", b"description", b"shards", b"ranks")
"""The fields of a job that never change."""


def job_of(facts: Sequence[Any]) -> Job:
    """The job, from the answers for `JOB_FACTS` of one that is there."""
    launch, name, lease, description, shards, ranks = facts
    name, description, shards, ranks = map(fact, (name, description, shards, ranks))
    lease_s = LEASE_S if lease is None else int(lease) / 1_000  # jobs of earlier versions tell none
    return Job(name.decode(), launch.decode(), lease_s, description, int(shards), int(ranks))


def marks(key: bytes, kind: str, ranks: int) -> Command:
    """Asks for the last round of every rank that is prepared (`kind` "s") or pushed ("p")."""
    return (b"ZMSCORE", key, *(f"{kind}{rank}".encode() for rank in range(ranks)))


def read_reports(
    ask: Callable[[Command], Any], key: bytes, names: Collection[str] | None
) -> dict[str, bytes]:
    """All reports by name, or those of these `names` that are there; `ask` gives the answer to a command."""
    if names is None:
        return {name.decode(): blob for name, blob in pairs(ask((b"HGETALL", key))).items()}
    if not names:
        return {}
    blobs = ask((b"HMGET", key, *(name.encode() for name in names)))
    return {name: blob for name, blob in zip(names, blobs, strict=True) if blob is not None}


def highest_clock(launch: str) -> bytes:
    """The member of `MARKS` for the highest clock of a job: what is written late by one of before is lost."""
    return b"clock:" + launch.encode()


def progress_of(shard: int, owner: bytes) -> bytes:
    """The member of `PROGRESS` for a data shard that this worker has in work, or nobody."""
    return b"%d:%b" % (shard, owner)


def view_reads(key: Mapping[BoardPart, bytes], job: Job, *, shards: bool) -> dict[str, Command]:
    """What to ask, all at one moment, for `view_of`."""
    everything = (b"0", b"-1", b"WITHSCORES")
    reads: dict[str, Command] = {
        "job": (b"HMGET", key[BoardPart.JOB], b"state", b"message", b"pause", b"shards", b"begun"),
        "time": TIME,
        "coordinator": (b"GET", key[BoardPart.COORDINATOR]),
        "clock": (b"ZSCORE", key[BoardPart.MARKS], highest_clock(job.launch)),
        "leases": (b"ZRANGE", key[BoardPart.LEASES], *everything),
        "lengths": (b"HGETALL", key[BoardPart.LENGTHS]),
        "clocks": (b"ZRANGE", key[BoardPart.CLOCKS], *everything),
        "hosts": (b"HGETALL", key[BoardPart.HOSTS]),
        "unfinished": (b"HLEN", key[BoardPart.OWNERS]),
    }
    if shards:
        reads["owners"] = (b"HGETALL", key[BoardPart.OWNERS])
        reads["progress"] = (b"ZRANGE", key[BoardPart.PROGRESS], *everything)
    if job.ranks:
        reads["rank_owners"] = (b"HGETALL", key[BoardPart.RANK_OWNERS])
        reads["prepared"] = marks(key[BoardPart.MARKS], "s", job.ranks)
        reads["pushed"] = marks(key[BoardPart.MARKS], "p", job.ranks)
    return reads


def view_of(found: Mapping[str, Any]) -> BoardView:
    """The board, from the answers to `view_reads`, by name."""
    state, message, pause, shards, begun = found["job"]
    now_state = job_state(state)
    now_ms = milliseconds(found["time"])
    leases, clocks, hosts = pairs(found["leases"]), pairs(found["clocks"]), pairs(found["hosts"])
    progress, rank_owners = pairs(found.get("progress", ())), pairs(found.get("rank_owners", ()))

    def live(worker: bytes | None) -> str | None:
        return worker.decode() if worker is not None and worker in leases else None

    workers = [
        WorkerView(
            id=worker.decode(),
            host=hosts.get(worker, b"").decode(),
            clock=number(clocks.get(worker)),
            lease_left_s=(float(until) - now_ms) / 1_000,
        )
        for worker, until in sorted(leases.items())
    ]
    owners = {int(shard): owner for shard, owner in pairs(found.get("owners", ())).items()}
    unfinished = {
        shard: ShardView(live(owners[shard]), number(progress.get(progress_of(shard, owners[shard]))) or 0)
        for shard in sorted(owners)
    }
    prepared, pushed = rounds(found.get("prepared", ())), rounds(found.get("pushed", ()))
    return BoardView(
        state=now_state,
        message=(message or b"").decode(),
        pause=number(pause),
        coordinator=found["coordinator"],
        coordinator_lease_left_s=max(lease_end(found["coordinator"]) - now_ms, 0) / 1_000,
        clock=number(found["clock"]) or 0,
        workers=tuple(workers),
        shards=int(shards),
        begun=int(begun),
        finished=int(begun) - found["unfinished"],
        unfinished=unfinished,
        ranks=tuple(
            RankView(live(rank_owners.get(b"%d" % rank)), prepared[rank], pushed[rank])
            for rank in range(len(pushed))
        ),
    )
