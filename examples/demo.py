"""The whole path on one machine, with the commands that a user would type.

Makes a synthetic click log, hashes it, trains on it, evaluates the model on the log's last part beside the
best that is possible, and asks for one prediction over HTTP. Everything stays in `demo/`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from pyarrow import parquet

from ctr.errors import StoreError
from ctr.ps.servers import find_redis_server

FOLDER = Path("demo")
ROWS = 1_000_000
HOLDOUT = 0.1
BIN = Path(sys.executable).parent


def main() -> None:
    """Run the steps, then say what to type next."""
    started = monotonic()
    rows = int(os.environ.get("DEMO_ROWS", ROWS))
    compile_kernels_of_workers()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    log, truth, hashed, model = (FOLDER / name for name in ("clicks.tsv", "truth.parquet", "hashed", "model"))

    title("1. A click log: Criteo's columns, drawn from a known model")
    run("synth", "--rows", rows, "--out", log, "--truth", truth)
    print("\nits first row:\n  " + log.open().readline().replace("\t", " ").strip()[:100] + " ...")

    title("2. Hash its features, once")
    run("features", "build", "--spec", "criteo", log, "--out", hashed)
    run("features", "describe", hashed)

    title("3. Train on the first 90%, and evaluate on the last 10%")
    summary = run(
        "train", hashed, "--model", model, "--holdout-fraction", HOLDOUT, *distributed(),
        json_to=FOLDER / "train.json",
    )  # fmt: skip
    held_out = summary["holdout"]
    best = best_logloss(truth, start=rows - round(rows * HOLDOUT))
    print("\nlog loss on the last 10%")
    print(f"  always predict the base rate  {held_out['base_logloss']:.5f}")
    print(f"  this model                    {held_out['logloss']:.5f}   AUC {held_out['auc']:.5f}")
    print(f"  best reachable (the truth)    {best:.5f}")

    title("4. Serve the model, and predict one example over HTTP")
    score_over_rest(model)

    title(f"Done in {monotonic() - started:.0f} s. On your own data:")
    print(f"  {BIN}/ctr features build --spec SPEC.yaml clicks.csv --out hashed   # specs: docs/spec.md")
    print(f"  {BIN}/ctr train hashed --model model --holdout-fraction 0.1   # in memory; --store for Redis")
    print(f"  {BIN}/ctr serve --model model")


def compile_kernels_of_workers() -> None:
    """Compile beside the first step, which leaves a core idle; `ctr warm-up` compiles everything."""
    script = "from ctr.workers.worker import warm_up_worker; warm_up_worker()"
    subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def best_logloss(truth: Path, start: int) -> float:
    """Log loss of the true probabilities on the rows from `start` on: no model does better."""
    rows = parquet.read_table(truth).slice(start)
    p, label = (rows[name].to_numpy().astype(np.float64) for name in ("probability", "label"))
    return float(-np.log(np.where(label == 1, p, 1 - p)).mean())


def distributed() -> list[object]:
    """Two worker processes, and the parameters in two Redis servers, if there is a redis-server to start."""
    try:
        find_redis_server()
    except StoreError as error:
        print(f"\nTraining in memory with one worker instead of two over two Redis servers, as\n{error}")
        return []
    print(
        "\nTwo worker processes, and the parameters in a Redis Cluster of two servers that start and end with"
    )
    print("the job. With --store redis+cluster://host:port,... the same command runs on a cluster.")
    return ["--store", "embedded://?shards=2", "--workers", 2]


def title(text: str) -> None:
    """Print the head of a step."""
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def run(*arguments: object, json_to: Path | None = None) -> dict[str, Any]:
    """Run one `ctr` command, shown as it would be typed; return its JSON summary if asked for."""
    words = [str(argument) for argument in arguments]
    print(f"\n$ ctr {shlex.join(words)}", flush=True)
    if json_to is not None:
        words += ["--json", str(json_to)]
    finished = subprocess.run([BIN / "ctr", *words], check=False)
    if finished.returncode != 0:
        sys.exit(f"the demo stopped: ctr {words[0]} failed with exit code {finished.returncode}")
    return {} if json_to is None else json.loads(json_to.read_bytes())


def score_over_rest(model: Path) -> None:
    """Start `ctr serve` on a free port, post one row, and stop the server."""
    print(f"\n$ ctr serve --model {model}", flush=True)
    command = [BIN / "ctr", "serve", "--model", model, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        try:
            url = None
            for line in server.stdout:
                if found := re.search(r"http://\S+", line):
                    url = found.group().rstrip("/")
                    print(line.strip())
                    break
            if url is None:
                sys.exit("the demo stopped: the server did not start")
            row = {"I1": 5, "I2": 3, "I7": 12, "C1": "68fd1e64", "C2": "80e26c9b", "C9": "a73ee510"}
            body = json.dumps({"rows": [row]})
            print(f"\n$ curl -X POST {url}/v1/predict -H 'content-type: application/json' -d '{body}'")
            request = urllib.request.Request(
                f"{url}/v1/predict", body.encode(), {"content-type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                scored = answer.read().decode()
        finally:
            server.send_signal(signal.SIGTERM)
    print(scored)
    (probability,) = json.loads(scored)["predictions"]
    if not 0 < probability < 1 or server.returncode != 0:
        sys.exit(f"the demo stopped: not what was expected (the server's exit code is {server.returncode})")
    print("server stopped (exit code 0)")


if __name__ == "__main__":
    main()
