"""`Trial`: one round, from starting servers to the verdict."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from time import monotonic

import redis

from ctr.checkpoint import read_checkpoint
from ctr.errors import CtrError
from ctr.ps import RedisStore, parse_redis_url
from ctr.ps.servers.embedded import NODE_TIMEOUT
from ctr.workers.description import JobDescription
from tests.drill.evidence import UNDECIDED, Compare, Evidence, is_loss, is_out_of_memory, sums_in
from tests.drill.faults import FAULTS
from tests.drill.ledger import Ledger
from tests.drill.process import JobProcess, Order
from tests.drill.proof import StoreSums
from tests.drill.rounds import SERVERS, Round
from tests.drill.scene import MissedError, Scene, chunks_of
from tests.ps.breakable_redis import BreakableRedis
from tests.ps.stepped_clock import SteppedClock
from tests.ps.tls import Certificates, TlsProxy, url_of

EVENTS = "events"
"""The file of what happened when, in a round's folder."""
LEASE_S = 2.0
BOUND_S = 150.0
"""For one run of the command with two faults; undisturbed it takes 15 s. Clocks are stepped by more."""
ALLOWANCE_S = 5.0
"""After a primary was killed, training must have gone on within this after the timeout of its node."""
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
    recoveries: list[str] = field(default_factory=list)
    """Of faults in turn: how long the job took to recover from each."""
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
        compare: Compare,
        folder: Path,
        *,
        paced_s: float = 5.0,
        allowance_s: float = ALLOWANCE_S,
    ) -> None:
        """For `compare` see `Evidence`. The job trains for at least `paced_s` for each of its faults."""
        self.verdict = Verdict(round_)
        self._round = round_
        self._job = job
        self._folder = folder
        self._paced_s = paced_s * len(round_.faults)
        self._bound_s = BOUND_S * len(round_.faults) / 2
        self._allowance_s = allowance_s
        self._evidence = Evidence(job, compare)
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

    def _start(self, opened: ExitStack) -> BreakableRedis:
        wanted = SERVERS[self._round.servers]
        stepped = "step clock" in self._round.faults
        self._clock = SteppedClock(self._folder / "clock") if stepped else None
        environment = None
        if self._clock is not None:
            opened.callback(self._clock.clean)
            environment = self._clock.environment
        return opened.enter_context(BreakableRedis(wanted.nodes, wanted.replicas, wanted.config, environment))

    def _url(self, servers: BreakableRedis, opened: ExitStack) -> str:
        if not self._round.tls:
            return servers.url
        certificates, (server, *_) = Certificates(self._folder), servers.servers
        proxy = opened.enter_context(closing(TlsProxy(server.port, certificates)))
        return url_of(f":{server.password}@localhost:{proxy.port}", certificates.ca, *certificates.client)

    def _run_job(self, servers: BreakableRedis, url: str, opened: ExitStack) -> None:
        scene = None
        for number in range(1, _RUNS + 1):
            process = self._begin(url, number)
            # A worker of a run that died may be there while the next one runs.
            opened.callback(process.close)
            if scene is None:
                scene = self._scene(servers, url, process)
                self._strike(scene)
            try:
                code = process.wait(self._bound_s)
                scene.note(f"run {number} ended with code {code}")
            finally:
                scene.over.set()
                for thread in self._threads:
                    thread.join()
                (self._folder / EVENTS).write_text("\n".join(scene.events) + "\n")
            self.verdict.folds += scene.folds()
            if not self._goes_on(process, code, url):
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
        # A resumed run is faster, but not over before its first checkpoint.
        pace_s = self._paced_s * workers / chunks_of(self._job) / number
        remote = self._round.remote and number == 1
        self._processes.append(JobProcess(run, order, pace_s=pace_s, remote=remote))
        self.verdict.runs = number
        return self._processes[-1]

    def _scene(self, servers: BreakableRedis, url: str, process: JobProcess) -> Scene:
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
        """Begin the faults: in turn on one thread, a pair on two."""
        began = Event()

        def first() -> None:
            scene.until_job(lambda: scene.fraction() >= self._round.fraction)
            began.set()
            self._fault(scene, 0)

        def second() -> None:
            scene.until_job(began.is_set)
            scene.pause(self._round.gap_s)
            self._fault(scene, 1)

        def in_turn() -> None:
            for number in range(len(self._round.faults)):
                self._guarded(number, lambda n=number: self._fault_in_turn(scene, n))

        tasks = (
            [in_turn]
            if self._round.in_turn
            else [
                lambda: self._guarded(0, first),
                lambda: self._guarded(1, second),
            ]
        )
        self._threads = [Thread(target=task) for task in tasks]
        for thread in self._threads:
            thread.start()

    def _guarded(self, number: int, strike: Callable[[], None]) -> None:
        name = self._round.faults[number]
        try:
            strike()
        except MissedError:
            self.verdict.missed.append(name)
        except BaseException as error:  # noqa: BLE001  (shown with the round)
            self.verdict.problems.append(f"the fault {name!r} itself failed: {error!r}")

    def _fault(self, scene: Scene, number: int) -> None:
        FAULTS[self._round.faults[number]](scene, self._round.chances(number))

    def _fault_in_turn(self, scene: Scene, number: int) -> None:
        scene.until_job(lambda: scene.fraction() >= self._round.begins(number))
        self._fault(scene, number)
        scene.release()
        try:
            scene.pause(0.0)
            went_on_s, whole_s = scene.recovery()
        except MissedError:  # the run ended, perhaps because of the fault
            return
        name = self._round.faults[number]
        self.verdict.recoveries.append(
            f"{name}: went on after {went_on_s:.1f} s, whole after {whole_s:.1f} s"
        )
        timeout_s = float(SERVERS[self._round.servers].config[NODE_TIMEOUT]) / 1000
        if "kill" in name and "primary" in name and went_on_s > timeout_s + self._allowance_s:
            self.verdict.problems.append(
                f"{self.verdict.recoveries[-1]}; allowed: {timeout_s + self._allowance_s:g} s"
            )

    def _goes_on(self, process: JobProcess, code: int | None, url: str) -> bool:
        """Judge a run that is over; whether the job is to be resumed."""
        verdict, outcome = self.verdict, process.outcome()
        pushes = Ledger(process.ledger).read()
        if code is None:
            verdict.problems.append(f"run {verdict.runs} did not end within {self._bound_s:g} s")
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
            lost = self._round.may_refuse and is_loss(outcome.refusal)
            full = "fill memory" in self._round.faults and is_out_of_memory(outcome.refusal)
            if verdict.runs > 1 or not (lost or full):
                verdict.problems.append(f"run {verdict.runs} was refused: {outcome.refusal}")
                return False
            verdict.refusal = outcome.refusal
            if full:
                verdict.problems += self._evidence.stop(pushes, self._sums(url))
        if not self._checkpoint.exists():
            return False
        verdict.problems += self._evidence.resume(pushes, read_checkpoint(self._checkpoint))
        return True

    def _sums(self, url: str) -> StoreSums:
        """What is in the store of a run that stopped."""
        bits = self._job.feature_spec().bits
        with closing(RedisStore(parse_redis_url(url), bits=bits, width=2, join=True)) as store:
            return sums_in(store)
