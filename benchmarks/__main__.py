"""`python -m benchmarks [KIND ...]`: startup, speed, memory, accuracy; when named: parameters, plan, board,
wide, features, peers, predict, lbfgs, classifier, checkpoints, spark, serve, live, serving-peers, simulate.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks import features, peers, spark
from benchmarks.serving import live, predict, requests
from benchmarks.serving import peers as serving_peers
from benchmarks.simulation import simulate
from benchmarks.store import board, checkpoints, parameters, plan, wide
from benchmarks.training import accuracy, classifier, lbfgs, memory, speed, startup

KINDS = ("startup", "speed", "memory", "accuracy")
"""What is measured when nothing is named."""


def _parameters(o: argparse.Namespace) -> None:
    parameters.measure_requests(o.rounds)
    parameters.measure_training(o.folder, o.rows, o.rounds)
    parameters.measure_filters(o.folder, o.rows // 2)
    parameters.measure_workers(o.folder, o.rows // 2)


MEASURES: dict[str, Callable[[argparse.Namespace], None]] = {
    "startup": lambda o: startup.measure(o.folder, o.rounds),
    "speed": lambda o: speed.measure(o.folder, o.rows, o.rounds),
    "memory": lambda o: memory.measure(o.folder, o.memory_rows),
    "accuracy": lambda o: accuracy.measure(o.data, o.folder),
    "parameters": _parameters,
    "plan": lambda o: plan.measure(o.folder, o.plan_rows, o.rounds),
    "board": lambda o: board.measure(o.folder, o.rows),
    "wide": lambda o: wide.measure(o.folder, o.wide_rows),
    "predict": lambda o: predict.measure(o.folder, o.rows, o.rounds),
    "lbfgs": lambda o: lbfgs.measure(o.folder, o.lbfgs_rows),
    "classifier": lambda o: classifier.measure(o.fit_rows, o.rounds),
    "checkpoints": lambda o: checkpoints.measure(o.folder, o.checkpoint_rows, o.rounds),
    "spark": lambda o: spark.measure(o.folder, o.rows, o.rounds),
    "serve": lambda o: requests.measure(o.folder, o.rounds),
    "live": lambda o: live.measure(o.folder),
    "serving-peers": lambda o: serving_peers.measure(o.folder, o.rounds, o.peer_python),
    "simulate": lambda o: simulate.measure(),
    "features": lambda o: features.measure(o.folder, o.rows, o.rounds, o.window_rows),
    "peers": lambda o: peers.measure(o.folder, o.data, o.peer_rows, o.page, o.peer_python),
}


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "kinds",
        nargs="*",
        choices=[*MEASURES, []],
        help="what to measure; default: everything",
    )
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows for speed")
    parser.add_argument("--memory-rows", type=int, default=5_000_000, help="rows for memory")
    parser.add_argument("--wide-rows", type=int, default=10_000_000, help="rows for wide (10 GB)")
    parser.add_argument("--window-rows", type=int, default=20_000_000, help="rows for windows (600 MB)")
    parser.add_argument("--lbfgs-rows", type=int, default=200_000, help="rows for lbfgs (5 minutes)")
    parser.add_argument("--fit-rows", type=int, default=1_000_000, help="rows for classifier")
    parser.add_argument("--plan-rows", type=int, default=5_000_000, help="rows for plan (4 GB)")
    parser.add_argument("--checkpoint-rows", type=int, default=600_000, help="rows for checkpoints (3 GB)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side")
    parser.add_argument("--folder", type=Path, default=Path("bench-data"), help="for the data (3 GB)")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="real data for accuracy")
    parser.add_argument("--peer-rows", type=int, default=500_000, help="synthetic rows for peers (1 GB)")
    parser.add_argument(
        "--peer-python", type=Path, help="of an environment with the peers; default: a new one"
    )
    parser.add_argument("--page", type=Path, default=Path("docs/benchmarks.md"), help="that peers writes")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    kinds = options.kinds or KINDS
    for kind, measure in MEASURES.items():
        if kind in kinds:
            measure(options)


if __name__ == "__main__":
    main()
