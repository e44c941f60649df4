"""`Trial`: one round, from starting servers to the verdict."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from time import monotonic

import redis

from ctr.checkpoint import read_checkpoint
from ctr.drill.ledger import Ledger
from ctr.errors import CtrError
from ctr.ps.servers import EmbeddedRedis, SteppedClock
from ctr.workers.description import JobDescription
from tests.ctr.distributed_jobs import State
from tests.drill.faults import FAULTS
from tests.drill.order import Order
from tests.drill.process import JobProcess
from tests.drill.rounds import SERVERS, Round
from tests.drill.scene import MissedError, Scene, chunks_of
from tests.drill.verdict import UNDECIDED, Evidence, is_loss
from tests.ps.tls import Certificates, TlsProxy, url_of

EVENTS = "events"
"""The file of what happened when, in a round's folder."""
LEASE_S = 2.0
BOUND_S = 150.0
"""For one run of the command; undisturbed it takes 15 s. Clocks are stepped by more."""
_RUNS = 2
"""The second goes on from a checkpoint when no fault strikes any more: it has to be right."""


@dataclass(slots=True)
class Verdict:
    """What came of a round."""

    round: Round
    problems: list[str] = field(default_factory=list)
    """What is wrong."""
    undecided: list[str] = field(default_factory=list)
    """What the ledger cannot tell."""
    missed: list[str] = field(default_factory=list)
    """Faults that came too late."""
    refusal: str | None = None
    """The error that the first run ended with."""
    runs: int = 0
    checkpoints: int = 0
    folds: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.problems:
            result = "WRONG"
        elif self.undecided:
            result = "undecided"
        elif self.refusal is not None:
            result = "refused, and right when resumed" if self.runs > 1 else "refused before a checkpoint"
        else:
            result = "right"
        facts = [f"{self.seconds:.0f} s", f"{self.folds} folds", f"{self.checkpoints} checkpoints"]
        facts += [f"missed: {name}" for name in self.missed]
        return f"{result} ({', '.join(facts)})"


class Trial:
    """Everything that it leaves is in `folder`."""

    def __init__(
        self,
        round_: Round,
        job: JobDescription,
        expected: State | None,
        folder: Path,
        *,
        paced_s: float = 10.0,
    ) -> None:
        """`expected`: see `Evidence`. The job trains for at least `paced_s`, for faults to strike in it."""
        self.verdict = Verdict(round_)
        self._round = round_
        self._job = job
        self._folder = folder
        self._paced_s = paced_s
        self._evidence = Evidence(job, expected)
        self._checkpoint = folder / "checkpoint"
        self._processes: list[JobProcess] = []
        """One for each run."""
        self._threads: list[Thread] = []

    def run(self) -> Verdict:
        """Train, disturb and judge."""
        began = monotonic()
        self._folder.mkdir(parents=True)
        try:
            with ExitStack() as opened:
                servers = self._start(opened)
                self._run_job(servers, self._url(servers, opened), opened)
        except (CtrError, redis.RedisError, OSError) as error:
            self.verdict.problems.append(f"the round itself failed: {error!r}")
        for process in self._processes:
            self.verdict.problems += process.tracebacks()
        self.verdict.seconds = monotonic() - began
        return self.verdict

    def _start(self, opened: ExitStack) -> EmbeddedRedis:
        wanted = SERVERS[self._round.servers]
        stepped = "step clock" in self._round.faults
        self._clock = SteppedClock(self._folder / "clock") if stepped else None
        return opened.enter_context(EmbeddedRedis(wanted.shards, wanted.replicas, wanted.config, self._clock))

    def _url(self, servers: EmbeddedRedis, opened: ExitStack) -> str:
        if not self._round.tls:
            return servers.url
        certificates, (server, *_) = Certificates(self._folder), servers.servers
        proxy = opened.enter_context(closing(TlsProxy(server.port, certificates)))
        return url_of(f":{server.password}@localhost:{proxy.port}", certificates.ca, *certificates.client)

    def _run_job(self, servers: EmbeddedRedis, url: str, opened: ExitStack) -> None:
        scene = None
        for number in range(1, _RUNS + 1):
            process = self._begin(url, number)
            # A worker of a run that died may be there while the next one runs.
            opened.callback(process.close)
            if scene is None:
                scene = self._scene(servers, url, process)
                self._strike(scene)
            try:
                code = process.wait(BOUND_S)
                scene.note(f"run {number} ended with code {code}")
            finally:
                scene.over.set()
                for thread in self._threads:
                    thread.join()
                (self._folder / EVENTS).write_text("\n".join(scene.events) + "\n")
            self.verdict.folds += scene.folds()
            if not self._goes_on(process, code):
                break

    def _begin(self, url: str, number: int) -> JobProcess:
        run = self._folder / f"run-{number}"
        order = Order(
            job=self._job,
            url=url,
            checkpoint=self._checkpoint,
            checkpoint_s=self._round.checkpoint_s,
            resume=number > 1,
            lease_s=LEASE_S,
            outcome=run / "outcome",
        )
        workers = self._job.workers + (self._round.remote and not self._job.ranks)
        pace_s = self._paced_s * workers / chunks_of(self._job) if number == 1 else 0.0
        remote = self._round.remote and number == 1
        self._processes.append(JobProcess(run, order, pace_s=pace_s, remote=remote))
        self.verdict.runs = number
        return self._processes[-1]

    def _scene(self, servers: EmbeddedRedis, url: str, process: JobProcess) -> Scene:
        return Scene(
            servers=servers,
            clock=self._clock,
            url=url,
            job=self._job,
            process=process,
            checkpoint=self._checkpoint,
            over=Event(),
        )

    def _strike(self, scene: Scene) -> None:
        """Begin both faults, each on its thread."""
        began = Event()

        def first() -> None:
            scene.until_job(lambda: scene.fraction() >= self._round.fraction)
            began.set()
            FAULTS[self._round.faults[0]](scene, self._round.chances(0))

        def second() -> None:
            scene.until_job(began.is_set)
            scene.pause(self._round.gap_s)
            FAULTS[self._round.faults[1]](scene, self._round.chances(1))

        def guarded(number: int) -> None:
            name = self._round.faults[number]
            try:
                (first, second)[number]()
            except MissedError:
                self.verdict.missed.append(name)
            except BaseException as error:  # noqa: BLE001  (shown with the round)
                self.verdict.problems.append(f"the fault {name!r} itself failed: {error!r}")

        self._threads = [Thread(target=guarded, args=(number,)) for number in range(2)]
        for thread in self._threads:
            thread.start()

    def _goes_on(self, process: JobProcess, code: int | None) -> bool:
        """Judge a run that is over; whether the job is to be resumed."""
        verdict, outcome = self.verdict, process.outcome()
        pushes = Ledger(process.ledger).read()
        if code is None:
            verdict.problems.append(f"run {verdict.runs} did not end within {BOUND_S:g} s")
            return False
        if outcome is not None and outcome.refusal is None:
            verdict.checkpoints += outcome.checkpoints
            for problem in self._evidence.judge(pushes, outcome):
                (verdict.undecided if problem.startswith(UNDECIDED) else verdict.problems).append(problem)
            return False
        if outcome is None:
            if code >= 0 or "kill command" not in self._round.faults or verdict.runs > 1:
                verdict.problems.append(f"run {verdict.runs} ended with code {code} and without a word")
                return False
        else:
            assert outcome.refusal is not None
            if verdict.runs > 1 or not self._round.may_refuse or not is_loss(outcome.refusal):
                verdict.problems.append(f"run {verdict.runs} was refused: {outcome.refusal}")
                return False
            verdict.refusal = outcome.refusal
        if not self._checkpoint.exists():
            return False
        verdict.problems += self._evidence.resume(pushes, read_checkpoint(self._checkpoint))
        return True
