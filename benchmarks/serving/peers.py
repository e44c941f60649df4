"""`ctr serve` beside MLServer's scikit-learn runtime, `mlflow models serve`, and VW's binding in process.

The peers are in an environment of their own, which `make bench-serve-peers` makes. Each serves a model of the
same 39 columns: MLServer a pipeline of scikit-learn, MLflow the model of ctr itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from urllib.request import urlopen

import orjson

from benchmarks.serving.requests import Load, Row, random_rows, saved_model, serve_model, server_of, timed

START_S = 180.0
PIPELINE = """
import joblib, sys
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
names = ["click", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
rows = pd.read_csv(sys.argv[1], sep="\\t", names=names, nrows=30_000, dtype={n: str for n in names[14:]})
rows[names[1:14]] = rows[names[1:14]].fillna(0.0)
rows[names[14:]] = rows[names[14:]].fillna("")
texts = OneHotEncoder(handle_unknown="ignore")
columns = ColumnTransformer([("numbers", StandardScaler(), names[1:14]), ("texts", texts, names[14:])])
model = make_pipeline(columns, LogisticRegression(max_iter=50)).fit(rows[names[1:]], rows["click"])
joblib.dump(model, sys.argv[2])
"""
LOGGED = """
import sys, ctr
ctr.mlflow.save_model(sys.argv[1], sys.argv[2])
"""
VOWPAL = """
import sys, time
from vowpalwabbit import Workspace
lines = [line.rstrip("\\n") for line in open(sys.argv[1])]
model = Workspace("--loss_function logistic --link logistic -b 24 --quiet")
for line in lines:
    model.learn("1 " + line)
best = 9e9
for _ in range(5):
    began = time.perf_counter()
    for line in lines:
        model.predict(line)
    best = min(best, (time.perf_counter() - began) / len(lines))
print(1 / best)
"""


def measure(folder: Path, rounds: int, python: Path) -> None:
    """Print requests and rows per second, and ratios."""
    model, rows = saved_model(folder), random_rows(100)
    place = folder / "serving-peers"
    place.mkdir(exist_ok=True)
    servers = {"ctr serve": (lambda: server_of(serve_model, model), _as_ctr)}
    servers |= {
        "mlflow models serve": (lambda: _mlflow(python, model, place), _as_mlflow),
        "MLServer, scikit-learn": (lambda: _mlserver(python, folder, place), _as_mlserver),
    }
    seconds: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as opened:
        ports = {name: opened.enter_context(start()) for name, (start, _) in servers.items()}
        for _ in range(rounds):
            for name, (_, asked) in servers.items():
                for count, connections in ((1, 8), (100, 2)):
                    latencies, wall = timed(ports[name], asked(rows[:count], connections))
                    seconds.setdefault((name, count), []).append(wall / len(latencies))
    took = {key: median(of_rounds) for key, of_rounds in seconds.items()}
    vowpal = _vowpal(python, place, rows)
    print(f"\nrequests/s on {os.cpu_count()} cores, which the client shares; medians of {rounds} rounds")
    print(f"  {'':28}{'one row':>12}{'100 rows':>12}{'rows/s':>12}{'ctr serve / this':>24}")
    for name in servers:
        one, many = took[name, 1], took[name, 100]
        ratios = f"{one / took['ctr serve', 1]:10.1f} {many / took['ctr serve', 100]:10.1f}"
        print(f"  {name:28}{1 / one:12,.0f}{1 / many:12,.0f}{100 / many:12,.0f}{ratios:>24}")
    of_ctr = 100 / took["ctr serve", 100]
    print(f"  {'VW, predict() in process':28}{'':12}{'':12}{vowpal:12,.0f}{'':11}{of_ctr / vowpal:>13.1f}")
    print("  asked: mlflow 5, MLServer 10, rows of VW 1")


def _as_ctr(rows: Sequence[Row], connections: int) -> Load:
    return Load("/v1/predict", orjson.dumps({"rows": rows}), connections)


def _as_mlflow(rows: Sequence[Row], connections: int) -> Load:
    numbered = [{k: float(v) if k[0] == "I" else v for k, v in row.items()} for row in rows]
    return Load("/invocations", orjson.dumps({"dataframe_records": numbered}), connections)


def _as_mlserver(rows: Sequence[Row], connections: int) -> Load:
    inputs = [
        {
            "name": name,
            "shape": [len(rows), 1],
            "datatype": "FP64" if name[0] == "I" else "BYTES",
            "data": [float(row[name]) if name[0] == "I" else row[name] for row in rows],
        }
        for name in rows[0]
    ]
    body = {"parameters": {"content_type": "pd"}, "inputs": inputs}
    return Load("/v2/models/clicks/infer", orjson.dumps(body), connections)


def _run(python: Path, code: str, *words: object) -> str:
    return subprocess.run(
        [str(python), "-c", code, *map(str, words)], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def _mlflow(python: Path, model: Path, place: Path) -> AbstractContextManager[int]:
    logged = place / "mlflow"
    if not logged.exists():
        _run(python, LOGGED, model, logged)
    words = ["models", "serve", "--env-manager", "local", "-m", str(logged), "-h", "127.0.0.1", "-p"]
    return _started([str(python.with_name("mlflow")), *words], "/health", place)


def _mlserver(python: Path, folder: Path, place: Path) -> AbstractContextManager[int]:
    home = place / "mlserver"
    home.mkdir(exist_ok=True)
    if not (home / "model.joblib").exists():
        _run(python, PIPELINE, folder / "serve.tsv", home / "model.joblib")
    facts = {
        "name": "clicks",
        "implementation": "mlserver_sklearn.SKLearnModel",
        "parameters": {"uri": "./model.joblib"},
    }
    (home / "model-settings.json").write_text(json.dumps(facts))
    return _started([str(python.with_name("mlserver")), "start", str(home)], "/v2/health/ready", home)


@contextmanager
def _started(command: Sequence[str], ready: str, place: Path) -> Iterator[int]:
    """A server of a peer; its port is the last word, or in MLServer's settings."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = list(command)
    if "mlserver" in words[0]:
        settings = {"http_port": port, "grpc_port": port + 1, "metrics_port": port + 2, "host": "127.0.0.1"}
        (place / "settings.json").write_text(json.dumps({**settings, "debug": False}))
    else:
        words.append(str(port))
    path = f"{Path(words[0]).parent}:{os.environ['PATH']}"
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            words, env=os.environ | {"PATH": path}, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _await(lambda: urlopen(f"http://127.0.0.1:{port}{ready}", timeout=2), process, place / "log")
        yield port
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def _await(ask: Callable[[], object], process: subprocess.Popen[bytes], log: Path) -> None:
    end = perf_counter() + START_S
    while True:
        try:
            ask()
        except OSError:
            if process.poll() is not None or perf_counter() > end:
                raise SystemExit(f"{process.args!r} did not start: {log.read_text()[-2_000:]}") from None
            sleep(0.2)
        else:
            return


def _vowpal(python: Path, place: Path, rows: Sequence[Row]) -> float:
    """Rows/s of VW's Python binding, one after the other."""
    lines = place / "rows.vw"
    texts = (
        " ".join(f"{name}:{value}" if name[0] == "I" else f"{name}={value}" for name, value in row.items())
        for row in random_rows(5_000)
    )
    lines.write_text("".join(f"| {text}\n" for text in texts))
    return float(_run(python, VOWPAL, lines))
