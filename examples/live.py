"""A model that learns from what it serves: `make live`.

Redis, a joiner, training from a stream, and a server of live weights run beside each other, with the commands
that a user would type. Users come and click by a true model, of which half of the weights change their sign
in the course of an hour of log time, here a few minutes. A line every two seconds compares the live model
with the one that was frozen at the start. Everything stays in `live/`.
"""

from __future__ import annotations

import argparse
import heapq
import http.client
import math
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic, sleep

import numpy as np
import orjson

import ctr
from ctr.ps.servers import EmbeddedRedis

FOLDER = Path("live")
SIZES = {
    "site": 20_000,
    "page": 5_000,
    "ad": 2_000,
    "city": 1_000,
    "agent": 500,
    "hour": 24,
    "slot": 10,
    "kind": 50,
}
HISTORY = 500_000
ROWS = 50
"""Of a request."""
USERS = 4
"""That ask at the same time, each for one page after the other."""
CLICK_S = 0.3
"""Until a click comes, on average."""
PROBE_S = 3.0
SPEC = """version: 1
source: {format: jsonl}
label: click
bits: 22
fields:
""" + "".join(f"  - {{name: {name}, type: category}}\n" for name in SIZES)


class Truth:
    """What users click on: a logistic regression whose weights change."""

    def __init__(self, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        self._weights = {name: rng.normal(0, 0.6, size) for name, size in SIZES.items()}
        # Half of the weights change their sign, each at a moment of its own.
        self._changes = {
            name: np.where(rng.random(size) < 0.5, rng.random(size), np.inf) for name, size in SIZES.items()
        }

    def rows(
        self, count: int, moment: float, rng: np.random.Generator
    ) -> tuple[list[dict[str, str]], np.ndarray]:
        """Rows, and the probability of a click of each; `moment`: of the hour, 0 to 1."""
        margins, columns = np.full(count, -1.6), []
        for name, size in SIZES.items():
            values = np.minimum(rng.pareto(0.7, count) * size / 50, size - 1).astype(np.int64)
            signs = np.where(self._changes[name][values] < moment, -1, 1)
            margins += self._weights[name][values] * signs
            columns.append([f"{name}{value}" for value in values])
        rows = [dict(zip(SIZES, values, strict=True)) for values in zip(*columns, strict=True)]
        return rows, 1 / (1 + np.exp(-margins))


@dataclass
class Score:
    """Log loss and calibration of some predictions."""

    examples: int = 0
    loss: float = 0.0
    predicted: float = 0.0
    clicked: float = 0.0

    def add(self, predictions: np.ndarray, labels: np.ndarray) -> None:
        p = np.clip(predictions.astype(np.float64), 1e-7, 1 - 1e-7)
        self.examples += labels.size
        self.loss -= float(np.where(labels, np.log(p), np.log(1 - p)).sum())
        self.predicted += float(p.sum())
        self.clicked += float(labels.sum())

    @property
    def logloss(self) -> float:
        return self.loss / max(self.examples, 1)

    @property
    def calibration(self) -> float:
        return self.predicted / max(self.clicked, 1e-9)


@dataclass
class Town:
    """The users, and what came of it."""

    url: str
    frozen: ctr.Model
    seconds: float
    truth: Truth = field(default_factory=Truth)
    began: float = field(default_factory=monotonic)
    requests: int = 0
    errors: int = 0
    scores: dict[str, Score] = field(
        default_factory=lambda: {name: Score() for name in ("live", "frozen", "truth")}
    )
    recent: dict[str, Score] = field(
        default_factory=lambda: {name: Score() for name in ("live", "frozen", "truth")}
    )
    fresh_s: list[float] = field(default_factory=list)
    """From a click to another prediction."""
    stopping: threading.Event = field(default_factory=threading.Event)
    _clicks: list[tuple[float, str]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def moment(self) -> float:
        """Of the hour in which the truth changes."""
        return (monotonic() - self.began) / self.seconds

    def visit(self, seed: int) -> None:
        """One user after the other asks for a page, and clicks."""
        rng, client = np.random.default_rng(seed), Client(self.url)
        while not self.stopping.is_set():
            rows, probabilities = self.truth.rows(ROWS, self.moment, rng)
            answer = client.post("/v1/predict", {"rows": rows, "log": True})
            if answer is None:
                self.errors += 1
                sleep(0.1)
                continue
            labels = rng.random(ROWS) < probabilities
            guesses = {
                "live": np.array(answer["predictions"]),
                "frozen": self.frozen.predict(rows),
                "truth": probabilities,
            }
            due = monotonic() + rng.exponential(CLICK_S, ROWS)
            with self._lock:
                self.requests += 1
                for name, predictions in guesses.items():
                    self.scores[name].add(predictions, labels)
                    self.recent[name].add(predictions, labels)
                if ids := answer.get("ids"):
                    for i in np.flatnonzero(labels).tolist():
                        heapq.heappush(self._clicks, (float(due[i]), ids[i]))

    def click(self) -> None:
        """Send the clicks that are due."""
        client = Client(self.url)
        while not self.stopping.is_set():
            due = []
            with self._lock:
                while self._clicks and self._clicks[0][0] <= monotonic():
                    due.append(heapq.heappop(self._clicks)[1])
            if due and client.post("/v1/feedback", {"clicks": due}) is None:
                self.errors += 1
            sleep(0.02)

    def probe(self) -> None:
        """How long a click on something new takes to change what is predicted for it."""
        client, number = Client(self.url), 0
        while not self.stopping.wait(PROBE_S):
            number += 1
            row = {"site": f"new site {number}"}
            answer = client.post("/v1/predict", {"rows": [row], "log": True})
            sleep(PROBE_S)  # by then, it has been learnt as not clicked
            before = client.post("/v1/predict", {"rows": [row]})
            if answer is None or before is None or "ids" not in answer:
                continue
            client.post("/v1/feedback", {"clicks": answer["ids"]})
            clicked = monotonic()
            while not self.stopping.is_set() and monotonic() < clicked + 30:
                now = client.post("/v1/predict", {"rows": [row]})
                if now is not None and now["predictions"][0] > before["predictions"][0] + 0.01:
                    self.fresh_s.append(monotonic() - clicked)
                    break
                sleep(0.02)


class Client:
    """One connection to the server."""

    def __init__(self, url: str) -> None:
        self._host = url.removeprefix("http://")
        self._connection = http.client.HTTPConnection(self._host, timeout=10)

    def post(self, path: str, body: object) -> dict | None:
        """The answer, None if there is none."""
        try:
            self._connection.request("POST", path, orjson.dumps(body), {"content-type": "application/json"})
            response = self._connection.getresponse()
            content = response.read()
        except OSError:
            self._connection.close()
            return None
        return orjson.loads(content) if response.status == 200 else None

    def get(self, path: str) -> dict:
        self._connection.request("GET", path)
        return orjson.loads(self._connection.getresponse().read())


def main() -> None:
    """Run it all, and print what came of it."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=180, help="in which an hour of log time passes")
    options.add_argument("--json", type=Path, help="write the figures here")
    asked = options.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    spec, history, start = FOLDER / "spec.yaml", FOLDER / "history.jsonl", FOLDER / "start"
    spec.write_text(SPEC)
    title("1. Train on what was before")
    write_history(history)
    run("train", "--spec", spec, history, "--model", start)
    title("2. Redis, a joiner, training from its stream, and a server of live weights")
    with ExitStack() as opened:
        redis = opened.enter_context(EmbeddedRedis()).url
        served, joined, store = f"{redis}?stream=served", f"{redis}?stream=joined", f"{redis}?model=live"
        url = start_all(opened, served, joined, store, spec, start)
        title(f"3. Users click while the truth changes, for {asked.seconds:g} s")
        town = Town(url, ctr.load_model(start), asked.seconds)
        watch(town)
    report(town, asked.json)


def write_history(path: Path) -> None:
    truth, rng = Truth(), np.random.default_rng(2)
    with path.open("wb") as file:
        for _ in range(HISTORY // 10_000):
            rows, probabilities = truth.rows(10_000, 0.0, rng)
            for row, clicked in zip(rows, rng.random(10_000) < probabilities, strict=True):
                file.write(orjson.dumps({"click": int(clicked), **row}, option=orjson.OPT_APPEND_NEWLINE))


def start_all(opened: ExitStack, served: str, joined: str, store: str, spec: Path, start: Path) -> str:
    """Start the commands; the server's address."""
    log = FOLDER / "training.log"
    words = ("train", "--stream", joined, "--store", store, "--spec", spec, "--warm-start", start)
    words += ("--model", FOLDER / "model", "--publish-every", "30s", "--max-evidence", 30)
    opened.enter_context(command(*words, log=log))
    opened.enter_context(command("join", served, "--out", joined, "--follow", log=FOLDER / "joining.log"))
    deadline = monotonic() + 60
    while True:  # until the job has begun
        server = opened.enter_context(
            command(
                "serve", "--store", store, "--feedback-log", served, "--port", 0, log=FOLDER / "serving.log"
            )
        )
        while server.poll() is None and monotonic() < deadline:
            if (address := re.search(r"http://[0-9.:]+", (FOLDER / "serving.log").read_text())) is not None:
                return address[0]
            sleep(0.1)
        if monotonic() > deadline:
            sys.exit(f"the server has not started; see {FOLDER}/*.log")
        sleep(1)


def watch(town: Town) -> None:
    """Let users come, and print a line now and then."""
    works = [threading.Thread(target=town.visit, args=(seed,)) for seed in range(USERS)]
    works += [threading.Thread(target=town.click), threading.Thread(target=town.probe)]
    for work in works:
        work.start()
    client, before = Client(town.url), 0
    print(
        f"{'minute':>6}{'requests/s':>12}{'age s':>8}{'calibration':>13}   log loss: live{'frozen':>9}"
        f"{'truth':>9}"
    )
    while town.moment < 1:
        sleep(2)
        age = client.get("/readyz").get("age_s", math.nan)
        with town._lock:
            recent = {name: (score.logloss, score.calibration) for name, score in town.recent.items()}
            town.recent = {name: Score() for name in town.recent}
            count, before = town.requests - before, town.requests
        print(
            f"{60 * town.moment:6.1f}{count / 2:12,.0f}{age:8.2f}{recent['live'][1]:13.3f}"
            f"{recent['live'][0]:17.4f}{recent['frozen'][0]:9.4f}{recent['truth'][0]:9.4f}",
            flush=True,
        )
    town.stopping.set()
    for work in works:
        work.join()


def report(town: Town, json: Path | None) -> None:
    live, frozen, truth = (town.scores[name] for name in ("live", "frozen", "truth"))
    gain = 1 - live.logloss / frozen.logloss
    print(f"\n{live.examples:,} rows served, {town.errors} errors; over the whole hour")
    print(
        f"  log loss     live {live.logloss:.5f}, frozen {frozen.logloss:.5f} (live is {gain:.1%} less), "
        f"truth {truth.logloss:.5f}"
    )
    print(f"  calibration  live {live.calibration:.3f}, frozen {frozen.calibration:.3f}")
    if town.fresh_s:
        print(
            f"  a click changes the prediction after {median(town.fresh_s):.2f} s (median of "
            f"{len(town.fresh_s)})"
        )
    if json is not None:
        figures = {"logloss": live.logloss, "frozen": frozen.logloss, "truth": truth.logloss}
        figures |= {"calibration": live.calibration, "rows": live.examples, "errors": town.errors}
        json.write_bytes(orjson.dumps(figures | {"click_s": median(town.fresh_s) if town.fresh_s else None}))


def run(*words: object) -> None:
    print("$ ctr", *words, flush=True)
    subprocess.run([sys.executable, "-m", "ctr", *map(str, words)], check=True)


@contextmanager
def command(*words: object, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command that runs beside, until the block ends."""
    shown = [re.sub(r"//[^@]*@", "//", str(word)) for word in words]
    print("$ ctr", *shown, f"> {log} &", flush=True)
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-m", "ctr", *map(str, words)], stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def title(text: str) -> None:
    print(f"\n{text}\n", flush=True)


if __name__ == "__main__":
    main()
