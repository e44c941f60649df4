"""`python -m benchmarks [KIND ...]`: startup, speed, memory, accuracy; when named: parameters, plan, board,
wide, features, peers, predict, lbfgs, classifier, checkpoints, spark.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import (
    accuracy,
    board,
    checkpoints,
    classifier,
    features,
    lbfgs,
    memory,
    parameters,
    peers,
    plan,
    predict,
    spark,
    speed,
    startup,
    wide,
)

KINDS = ("startup", "speed", "memory", "accuracy")


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "kinds",
        nargs="*",
        choices=[
            *KINDS,
            "parameters",
            "plan",
            "board",
            "wide",
            "features",
            "peers",
            "predict",
            "lbfgs",
            "classifier",
            "checkpoints",
            "spark",
            [],
        ],
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
    if "startup" in kinds:
        startup.measure(options.folder, options.rounds)
    if "speed" in kinds:
        speed.measure(options.folder, options.rows, options.rounds)
    if "memory" in kinds:
        memory.measure(options.folder, options.memory_rows)
    if "accuracy" in kinds:
        accuracy.measure(options.data, options.folder)
    if "parameters" in kinds:
        parameters.measure_requests(options.rounds)
        parameters.measure_training(options.folder, options.rows, options.rounds)
        parameters.measure_filters(options.folder, options.rows // 2)
        parameters.measure_workers(options.folder, options.rows // 2)
    if "plan" in kinds:
        plan.measure(options.folder, options.plan_rows, options.rounds)
    if "board" in kinds:
        board.measure(options.folder, options.rows)
    if "wide" in kinds:
        wide.measure(options.folder, options.wide_rows)
    if "predict" in kinds:
        predict.measure(options.folder, options.rows, options.rounds)
    if "lbfgs" in kinds:
        lbfgs.measure(options.folder, options.lbfgs_rows)
    if "classifier" in kinds:
        classifier.measure(options.fit_rows, options.rounds)
    if "checkpoints" in kinds:
        checkpoints.measure(options.folder, options.checkpoint_rows, options.rounds)
    if "spark" in kinds:
        spark.measure(options.folder, options.rows, options.rounds)
    if "features" in kinds:
        features.measure(options.folder, options.rows, options.rounds, options.window_rows)
    if "peers" in kinds:
        peers.measure(options.folder, options.data, options.peer_rows, options.page, options.peer_python)


if __name__ == "__main__":
    main()
