"""The drill: a training job whose servers and workers are made to fail, and the proof of what it kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

from ctr.checkpoint import Checkpoint, read_checkpoint, restore_checkpoint
from ctr.distributed import CheckpointSettings
from ctr.drill.fault_plan import PlannedFault, plan_faults, went_on
from ctr.drill.faults import Saboteur
from ctr.drill.freezes import freeze_servers
from ctr.drill.job import DrillJob, describe_job
from ctr.drill.ledger import Ledger, Push
from ctr.drill.proof import StoreSums, prove, sent_again
from ctr.drill.report import DrillReport, JobReport
from ctr.drill.settings import DrillSettings
from ctr.errors import CtrError
from ctr.learn import TrainProgress
from ctr.ps import RedisStore
from ctr.ps.servers import Cluster, EmbeddedRedis
from ctr.workers import WorkerProcesses

_CHECKPOINT_EVERY_S = 3.0
_OOM = "memory limit"  # of the error that workers raise


def run_drill(
    settings: DrillSettings, folder: Path, stop: Event, tell: Callable[[str], None] = lambda _: None
) -> DrillReport:
    """Train undisturbed and disturbed, freeze servers, and compare; `folder` keeps data and ledgers.

    `tell` hears what happens, a line at a time; `stop`, once set, ends it with KeyboardInterrupt. What the
    drill finds wrong is in its report. Raises CtrError when the drill itself cannot be done.
    """
    started = monotonic()
    report = DrillReport(asdict(settings))
    if settings.faults:
        tell(f"making {settings.rows:,} rows")
        job = DrillJob(describe_job(folder, settings), stop)
        tell("training undisturbed")
        report.undisturbed = _undisturbed(settings, job, folder / "undisturbed")
        for number in range(settings.rounds):
            tell(f"training with faults, round {number + 1}")
            disturbed = _Disturbed(settings, job, number, folder / f"round-{number + 1}", tell)
            report.disturbed.append(disturbed.run(report.undisturbed))
    if settings.freezes:
        tell(f"freezing servers {settings.freezes} times while clients push")
        report.freezes = freeze_servers(
            settings.freezes, str(settings.seed), folder / "freezes", freeze_s=settings.freeze_s, stop=stop
        )
    if stop.is_set():
        raise KeyboardInterrupt
    report.seconds = monotonic() - started
    return report


def _undisturbed(settings: DrillSettings, job: DrillJob, folder: Path) -> JobReport:
    """Train without faults, as fast as it goes."""
    report = JobReport()
    with EmbeddedRedis(settings.nodes) as servers:
        store = job.open(servers.url, "undisturbed")
        try:
            name = job.run(store, folder)
            pushes = Ledger(folder).read()
            report.sums = job.sums(store, name)
            report.proofs["at the end"] = prove(pushes, report.sums, owed=job.all_chunks())
            report.logloss = job.logloss(store)
        finally:
            store.close()
    return report


class _Disturbed:
    """One job that meets all the faults."""

    def __init__(
        self, settings: DrillSettings, job: DrillJob, number: int, folder: Path, tell: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._job = job
        self._folder = folder
        self._tell = tell
        self._seed = f"{settings.seed}:{number}"
        self._planned = plan_faults(settings.faults, self._seed)
        self._checkpoint = folder / "checkpoint"
        self._ledger = Ledger(folder / "ledger")
        self._report = JobReport()
        self._name = ""

    def run(self, undisturbed: JobReport) -> JobReport:
        """Train, and compare."""
        self._folder.mkdir()
        timeout = {"cluster-node-timeout": str(round(1000 * self._settings.node_timeout_s))}
        with EmbeddedRedis(self._settings.nodes, self._settings.replicas, timeout) as servers:
            store = self._job.open(servers.url, "drill")
            try:
                ended = self._train(store, servers, self._ledger, self._planned)
                if ended is None:
                    self._prove_end(store, self._ledger.read())
                elif self._is_out_of_memory(ended):
                    store = self._go_on(store, servers, ended)
                else:
                    self._report.problems.append(f"the job failed: {ended}")
            finally:
                store.close()
        self._check_faults()
        here, there = self._report.sums, undisturbed.sums
        if self._settings.consistency == "bsp" and here and there and here.state() != there.state():
            self._report.problems.append("the weights are not those of the undisturbed run, to the bit")
        return self._report

    def _train(
        self,
        store: RedisStore,
        servers: EmbeddedRedis,
        ledger: Ledger,
        planned: Sequence[PlannedFault],
        resume: Checkpoint | None = None,
    ) -> CtrError | None:
        """Train while faults strike; the error that ended it."""
        seconds = self._settings.fault_s * (len(planned) + 1) if planned else 0.0
        saboteur = Saboteur(
            planned,
            self._seed,
            Cluster(servers, store.keys.model, store.partitions.count),
            ledger,
            self._job.plan,
            freeze_s=self._settings.freeze_s,
            lag_s=self._settings.lag_s,
            is_resumable=self._checkpoint.exists,
            tell=self._tell,
        )

        def begin(name: str, workers: WorkerProcesses) -> None:
            self._name = name
            saboteur.start(workers, partial(store.applied, name))

        def follow(progress: TrainProgress) -> None:
            saboteur.fraction = progress.fraction

        memory = any(fault.kind == "memory" for fault in planned)
        try:
            self._job.run(
                store,
                ledger.folder,
                pace_s=seconds * self._settings.workers / self._job.chunks,
                checkpoints=CheckpointSettings(self._checkpoint, _CHECKPOINT_EVERY_S) if memory else None,
                resume=resume,
                on_start=begin,
                on_progress=follow,
            )
        except CtrError as error:
            return error
        finally:
            saboteur.end()
            self._report.faults += saboteur.reports
            if saboteur.failure is not None:
                self._report.problems.append(str(saboteur.failure))
        return None

    def _is_out_of_memory(self, error: CtrError) -> bool:
        return bool(self._report.faults) and self._report.faults[-1].kind == "memory" and _OOM in str(error)

    def _prove_end(self, store: RedisStore, pushes: Sequence[Push], **more: Any) -> None:
        """The job is done: every chunk must be in the store, once."""
        sums = self._report.sums = self._job.sums(store, self._name)
        self._report.proofs["at the end"] = prove(pushes, sums, owed=self._job.all_chunks(), **more)
        self._report.logloss = self._job.logloss(store)

    def _go_on(self, store: RedisStore, servers: EmbeddedRedis, ended: CtrError) -> RedisStore:
        """The job stopped as memory was full: prove what it left, and resume it; the store that it ends with.

        The memory is there again by now.
        """
        fault = self._report.faults[-1]
        fault.ended = monotonic()
        self._tell(f"the job stopped ({ended}); resuming it")
        before = self._ledger.read()
        proofs = self._report.proofs
        proofs["when memory was full"] = prove(before, self._job.sums(store, self._name))
        checkpoint = read_checkpoint(self._checkpoint)
        saved = StoreSums.of(checkpoint.dumps(), store.partitions, self._name)
        owed = self._job.chunks_before(checkpoint)
        proofs["in the checkpoint"] = prove(before, saved, owed=owed, acknowledged=False)
        store.drop()
        store = self._job.open(servers.url, "drill")
        try:
            restore_checkpoint(checkpoint, store)
            ledger = Ledger(self._folder / "resumed")
            problem = self._train(store, servers, ledger, [], checkpoint)
            fault.recovered = went_on(ledger.read(), fault.began, lambda _: True)
            if problem is None:
                self._prove_end(store, ledger.pushes, start=saved, earlier=before)
            else:
                self._report.problems.append(f"the resumed job failed: {problem}")
        except BaseException:
            store.close()
            raise
        return store

    def _check_faults(self) -> None:
        """Complete what is told of the faults, and note what did not go as it should."""
        report = self._report
        report.began = min((push.sent for push in self._ledger.pushes), default=0.0)
        again = sent_again(self._ledger.pushes)
        ends = [*(fault.began for fault in report.faults[1:]), float("inf")]
        for fault, end in zip(report.faults, ends, strict=True):
            fault.sent_again = sum(
                len(shares) for push, shares in again.items() if fault.began <= push.sent < end
            )
            if fault.recovery_s is None:
                fault.problem = fault.problem or "no push arrived after it"
            elif fault.kind in ("kill", "lag") and fault.recovery_s > self._settings.recovery_s:
                fault.problem = f"took longer than {self._settings.recovery_s:g} s"
            if fault.problem is not None:
                report.problems.append(f"{fault.what}: {fault.problem}")
        for planned in self._planned[len(report.faults) :]:
            report.problems.append(f"the job was over before the fault {planned.kind!r}: use more --rows")
