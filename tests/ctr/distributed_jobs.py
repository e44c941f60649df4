"""Jobs through Redis for tests: small data, real servers, workers that are processes of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest

from ctr.distributed import ClusterSummary
from ctr.distributed.checkpointing import CheckpointSettings
from ctr.distributed.run import StoreSettings, adopt, train_distributed
from ctr.engines.forking import Forked, fork_server
from ctr.engines.worker_processes import WorkerProcesses
from ctr.errors import StoreError
from ctr.features import (
    BLOCK_ROWS,
    DatasetSource,
    ExampleSource,
    FeatureSpec,
    RawSource,
    Slots,
    load_spec,
    open_source,
    write_dataset,
)
from ctr.learn.result import Trained, TrainResult
from ctr.learn.rounds import Rounds, TrainSettings, read_out
from ctr.model.linear import LinearModel
from ctr.model.model import Model
from ctr.optimizers.ftrl import Ftrl
from ctr.optimizers.optimizer import Float32, Passes
from ctr.ps import BoardView, Filters, JobBoard, MemoryStore, RedisStore, Token, parse_redis_url
from ctr.synth.log import write_click_log
from ctr.workers.description import JobDescription, absolute, input_bytes
from ctr.workers.report import WorkerReport, collect
from ctr.workers.worker import take_part

LEASE_S = 0.6
DEADLINE_S = 60.0
ROWS = 2_950
CHUNK = 300
SHARD_CHUNKS = 4

ADDITIVE = Ftrl(alpha=1.0, beta=1e20)
"""With steps so small, every move is the sum of its examples' gradients at zero: so the result is the same in
whatever order chunks are trained, if each counts once (see `same_sums`)."""

State = tuple[Slots, Float32]


@pytest.fixture(scope="session")
def job_spec() -> FeatureSpec:
    """Criteo's columns, hashed to 2**18 slots."""
    return load_spec("criteo").model_copy(update={"bits": 18})


@pytest.fixture(scope="session")
def job_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,950 synthetic rows: the last of ten chunks is smaller. Not to be changed by a test."""
    path = tmp_path_factory.mktemp("job") / "clicks.tsv"
    write_click_log(path, ROWS, seed=1)
    return path


@pytest.fixture(scope="session")
def job_data(job_log: Path, job_spec: FeatureSpec) -> Path:
    """The same rows, hashed."""
    path = job_log.with_name("hashed")
    write_dataset(RawSource(job_spec, [job_log]).batches(BLOCK_ROWS), job_spec, path)
    return path


StartJob = Callable[..., "RunningJob"]


@pytest.fixture
def start_job() -> Iterator[StartJob]:
    """Starts jobs, with the arguments of `RunningJob`; those that run at the test's end are stopped."""
    started: list[RunningJob] = []

    def start(*arguments: object, **settings: object) -> RunningJob:
        started.append(RunningJob(*arguments, **settings))
        return started[-1]

    yield start
    for job in started:
        job.stop.set()
    for job in started:
        with suppress(Exception):
            job.result()


def describe(
    inputs: Path,
    spec: FeatureSpec | None = None,
    *,
    filters: Filters | None = None,
    ftrl: Ftrl | None = None,
    **changes: object,
) -> JobDescription:
    """A job on a data set, or with a `spec` on a raw file: chunks of 300 rows, two workers, in rounds."""
    source = open_source([inputs], spec)
    consistency = changes.get("consistency", "bsp")
    facts: dict[str, object] = {
        "inputs": absolute([inputs]),
        "input_bytes": input_bytes([inputs]),
        "hashed": isinstance(source, DatasetSource),
        "spec": source.spec.to_yaml(),
        "on_bad_rows": "fail",
        "rows": source.count_rows(),
        "chunk": CHUNK,
        "shard_chunks": 1 if consistency == "bsp" else SHARD_CHUNKS,
        "passes": 1,
        "passes_before": 0,
        "workers": 2,
        "safe_adding": 0.75,
        "consistency": consistency,
        "staleness": 2,
        "optimizer": ftrl or Ftrl(),
        "filters": filters or Filters(),
    }
    return JobDescription.model_validate({**facts, **changes})


def source_of(job: JobDescription) -> ExampleSource:
    """The examples of a job."""
    return job.open_source()


def in_memory(job: JobDescription, start: State | None = None) -> tuple[State, float]:
    """What the job comes to without Redis: the state, and the log loss of progressive validation."""
    state, result = result_in_memory(job, start)
    return state, result.progressive.logloss


def result_in_memory(job: JobDescription, start: State | None = None) -> tuple[State, TrainResult]:
    """The same with all that training tells."""
    store = MemoryStore(job.feature_spec().bits, Ftrl.width)
    if start is not None:
        store.push(*start, Token("warm-start", 0, 0))
    settings = TrainSettings(job.workers, job.chunk, job.passes, job.safe_adding, job.admit)
    result = Rounds(
        source_of(job),
        store,
        job.optimizer_in(0),
        settings,
        before=Passes(job.passes_before, job.rows_before),
        chunks_before=int(job.workers > 1),  # so that all begin at once, as they do through Redis
    ).train()
    return read_out(store), result


def same(one: State, other: State) -> bool:
    """Whether two states are equal to the bit."""
    return np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1])


def same_sums(one: State, other: State) -> bool:
    """Whether two jobs with `ADDITIVE` came to the same sums: of halves in z and of quarters in n.

    Not to the bit, as a worker adds them up with a dither.
    """
    return np.array_equal(one[0], other[0]) and np.array_equal(np.round(4 * one[1]), np.round(4 * other[1]))


def model_id(state: State, job: JobDescription) -> str:
    """The id of the model that the job comes to, from its state."""
    nonzero = job.optimizer_in(job.passes - 1).weights(state[1])
    return Model.of(job.feature_spec(), LinearModel.of_weights(state[0], nonzero), {}).id


def weights(state: State, job: JobDescription) -> Float32:
    """The weight of every slot."""
    dense = np.zeros(1 << job.feature_spec().bits, np.float32)
    dense[state[0]] = job.optimizer_in(job.passes - 1).weights(state[1])
    return dense


class RunningJob:
    """`train_distributed` on a thread of its own, which the test watches through the board."""

    def __init__(
        self,
        job: JobDescription,
        url: str,
        *,
        checkpoints: CheckpointSettings | None = None,
        resume: bool = False,
        start: State | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        self.job = job
        self.url = url
        self.stop = Event()
        self.fractions: list[float] = []
        self._settings = StoreSettings(url, checkpoints, resume, lease_s)
        self._start = start
        self._workers: list[WorkerProcesses] = []
        self._outcome: list[tuple[Trained, ClusterSummary] | BaseException] = []
        self._thread = Thread(target=self._run, name="train_distributed")
        self._thread.start()

    def _run(self) -> None:
        try:
            found, told = train_distributed(
                self.job,
                source_of(self.job),
                self._settings,
                start=self._start,
                stop=self.stop,
                on_start=self._workers.append,
                on_progress=lambda progress: self.fractions.append(progress.fraction),
            )
            found.store.drop()
            self._outcome.append((found, told))
        except BaseException as error:  # noqa: BLE001  (raised by `result`)
            self._outcome.append(error)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def pids(self) -> list[int]:
        """The worker processes."""
        return wait_for(lambda: self._workers)[0].pids()

    def result(self) -> Trained:
        """What came of it; raises what it raised."""
        return self._end()[0]

    def facts(self) -> ClusterSummary:
        """What only a job through Redis tells; raises what it raised."""
        return self._end()[1]

    def _end(self) -> tuple[Trained, ClusterSummary]:
        self._thread.join(DEADLINE_S)
        assert self.over, "the job did not end"
        (outcome,) = self._outcome
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    @contextmanager
    def board(self) -> Iterator[JobBoard]:
        """The job's board, as soon as it is there."""
        with closing(JobBoard(parse_redis_url(self.url), lease_s=LEASE_S)) as board:
            wait_for(lambda: board.job() is not None or self.over)
            yield board

    def gather(self, until: int | None = None) -> None:
        """Let nobody begin until all workers of the job are there: one could be done before the others.

        See `pause` for `until`.
        """
        self.pause(-1)
        with self.board() as board:
            wait_for(lambda: len(board.look().workers) == self.job.workers)
        self.pause(until)

    def pause(self, at: int | None) -> None:
        """Let nobody begin this round or, by its own clock, chunk until another is named, or None.

        So a test has all the time that it needs, as a job that must not be over yet waits for it.
        """
        with self.board() as board:
            board.pause(at)

    def once(self, ready: Callable[[BoardView], bool]) -> BoardView | None:
        """Wait until the board shows that; None when the job ended before."""
        with suppress(StoreError), self.board() as board:  # which is dropped at the end
            while not self.over:
                view = board.look()
                if view.state != "running":
                    return None
                if ready(view):
                    return view
                time.sleep(0.01)
        return None


def wait_for(condition: Callable[[], object], timeout_s: float = DEADLINE_S) -> object:
    """What `condition` returns once that is not false; what is costly to look at is looked at less often."""
    deadline, before = time.monotonic() + timeout_s, time.thread_time()
    while not (result := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(max(0.01, 5 * (time.thread_time() - before)))
        before = time.thread_time()
    return result


def pushed(view: BoardView) -> int:
    """Chunks that are in the store; of `describe`'s data shards, all count as whole."""
    if view.ranks:
        return sum(rank.pushed + 1 for rank in view.ranks)
    return SHARD_CHUNKS * view.finished + sum(shard.progress for shard in view.unfinished.values())


def process_of(view: BoardView, number: int) -> int:
    """The process id of a live worker."""
    return int(view.workers[number % len(view.workers)].host.rpartition(":")[2])


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stops a process for the time of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


class Helpers:
    """Workers that are threads of this process."""

    def __init__(self, url: str, count: int, *, lease_s: float = LEASE_S) -> None:
        self.stop = Event()
        self.reports: list[WorkerReport] = []
        self.errors: list[BaseException] = []
        self._threads = [Thread(target=self._run, args=(url, lease_s)) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, url: str, lease_s: float) -> None:
        try:
            self.reports.append(take_part(parse_redis_url(url), None, lease_s=lease_s, stop=self.stop))
        except BaseException as error:  # noqa: BLE001  (looked at by the test)
            self.errors.append(error)

    def join(self) -> Sequence[WorkerReport]:
        """Wait for them."""
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        return self.reports


def in_threads(
    job: JobDescription, url: str, workers: int, start: State | None = None
) -> tuple[State, WorkerReport]:
    """What the job comes to with so many workers that are threads, and nobody who leads it."""
    parsed, plan = parse_redis_url(url), job.plan()
    with closing(
        RedisStore(
            parsed,
            bits=job.feature_spec().bits,
            width=Ftrl.width,
            facts=job.facts(),
            z_bits=job.z_bits,
            n_bits=job.n_bits,
        )
    ) as store:
        if start is not None:
            adopt(store, *start, job.optimizer_in(0))
        with closing(JobBoard(parsed)) as board:  # nobody is to be taken for dead
            board.create("threads", job.to_bytes(), shards=plan.shards, ranks=job.ranks)
            helpers = Helpers(url, workers)
            helpers.join()
            for error in helpers.errors:
                raise error
            total = WorkerReport()
            for blob in collect(board, board.look(), store.bits).values():
                total.add(WorkerReport.from_bytes(blob))
            state = read_out(store)
        store.drop()
    return state, total


_undisturbed: dict[tuple[bytes, bytes], tuple[State, WorkerReport]] = {}


def undisturbed(job: JobDescription, url: str, start: State | None = None) -> tuple[State, WorkerReport]:
    """What the job comes to with one worker and no disturbance; each job is trained once for all tests."""
    key = job.to_bytes(), b"" if start is None else start[0].tobytes() + start[1].tobytes()
    if key not in _undisturbed:
        _undisturbed[key] = in_threads(job, url, 1, start)
    return _undisturbed[key]


CTR = Path(sys.executable).with_name("ctr")


_commands: list[Command] = []


@pytest.fixture(autouse=True)
def no_command_is_left() -> Iterator[None]:
    """Kills what a failed test has left running."""
    yield
    while _commands:
        command = _commands.pop()
        command.kill()
        command.close()


class Command:
    """A `ctr` command as a process group of its own, whose processes can all be found.

    It is forked from a server, to be there at once; with `options` of `subprocess.Popen`, it is started anew.
    When forked, it may get standard `files` by their number, such as a terminal, and variables of its own.
    """

    def __init__(
        self,
        *words: object,
        files: Mapping[int, int] = {},
        variables: Mapping[str, str] = {},
        **options: Any,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ctr-command-"))
        self._out, self._said = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        _commands.append(self)
        line, environment = [*map(str, words)], {**os.environ, "TMPDIR": str(self._folder), **variables}
        self.popen: subprocess.Popen[bytes] | Forked
        if options:
            self.popen = subprocess.Popen(
                [CTR, *line],
                env=environment,
                process_group=0,
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._said,
                **options,
            )
            return
        with open(os.devnull) as nothing:
            own = {0: nothing.fileno(), 1: self._out.fileno(), 2: self._said.fileno()}
            self.popen = fork_server().fork(line, [*{**own, **files}.values()], environment)

    @property
    def out(self) -> str:
        """What it has said on standard output so far."""
        return os.pread(self._out.fileno(), 1 << 20, 0).decode()

    @property
    def said(self) -> str:
        """What it has said on standard error so far."""
        return os.pread(self._said.fileno(), 1 << 20, 0).decode()

    def processes(self) -> list[int]:
        """All live processes that this command has started, and its own: workers and servers too."""
        mark, folder = f"TMPDIR={self._folder}".encode(), str(self._folder)
        return [
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            # A redis-server overwrites its environment; it works in a folder of its own. Whoever was forked
            # shows another's; what workers say goes to a file there.
            if (pid == self.popen.pid and self.popen.poll() is None)
            or mark in _of(pid, "environ").split(b"\0")
            or _link(pid, "cwd").startswith(folder)
            or _link(pid, "fd/1").startswith(folder)
        ]

    def workers(self) -> list[int]:
        """Those of them that are workers."""
        return [pid for pid in self.processes() if _link(pid, "fd/1").startswith(str(self._folder))]

    def kill(self) -> None:
        """Kill all of them with -9, in no particular order."""
        while pids := self.processes():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.popen.wait()
        shutil.rmtree(self._folder, ignore_errors=True)  # nobody is left to do it

    def close(self) -> None:
        """Forget what it has said."""
        self._out.close()
        self._said.close()

    def end(self) -> tuple[int, str]:
        """Its exit code, and what it said on standard error; checks that it leaves nothing behind."""
        code = self.popen.wait(DEADLINE_S)
        assert "Traceback" not in self.said
        self.require_gone()
        return code, self.said

    def require_gone(self) -> None:
        """Wait until all processes have ended, and have removed what was theirs."""
        wait_for(lambda: not self.processes(), 20)
        wait_for(lambda: not list(self._folder.iterdir()), 20)
        self._folder.rmdir()


def _link(pid: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return ""


def _of(pid: int, file: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError:  # it has ended, or is not ours
        return b""
