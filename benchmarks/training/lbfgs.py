"""Batch training beside scikit-learn's L-BFGS: the same rows, 2**24 slots, the same penalty."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.measure import ctr
from ctr.features import Batch, load_spec, open_source
from ctr.features.batches import join_chunks, localize

BITS = 24
L2 = 10.0


def measure(folder: Path, rows: int) -> None:
    """Print seconds and the objective of both sides, one run each: scikit-learn's takes minutes."""
    log, spec = folder / f"lbfgs-{rows}.tsv", folder / f"lbfgs-{BITS}.yaml"
    hashed, model = log.with_suffix(".hashed"), folder / "lbfgs.model"
    if not log.exists():
        ctr("synth", "--rows", rows, "--out", log)
    spec.write_text(load_spec("criteo").to_yaml().replace("bits: 22", f"bits: {BITS}"))
    ctr("features", "build", "--spec", spec, log, "--out", hashed)
    words = ["train", hashed, "--model", model, "--optimizer", "lbfgs", "--l2", L2]
    ctr(*words, "--iterations", 2)  # compiles the kernels, if this is their first run
    ours = ctr(*words)
    examples = join_chunks([localize(each) for each in open_source([hashed], None).batches(65_536)])
    seconds, objective, iterations = _peer(examples.to_batch())
    print(f"\nL-BFGS: {rows:,} synthetic rows, 2**{BITS} slots, l2 {L2:g}, one run each")
    print(f"  {'':36}{'seconds':>10}{'iterations':>12}{'objective':>16}")
    found = ours["convergence"]
    for what, took, steps, value in (
        ("scikit-learn LogisticRegression", seconds, iterations, objective),
        ("ctr, reading included", ours["seconds"], found["iterations"], found["objective"]),
        ("ctr, the whole command", ours["wall"], found["iterations"], found["objective"]),
    ):
        print(f"  {what:36}{took:10.2f}{steps:12,}{value:16,.2f}")
    print(f"  ratio of seconds {ours['seconds'] / seconds:.4f}, asked at most 0.1")


def _peer(batch: Batch) -> tuple[float, float, int]:
    """scikit-learn's seconds, objective and iterations."""
    from sklearn.linear_model import LogisticRegression

    features, labels = batch.to_scipy(BITS), batch.labels
    assert labels is not None
    features.data[features.indices == 0] = 0  # the bias is its intercept
    features.eliminate_zeros()
    peer = LogisticRegression(C=1 / L2, max_iter=1_000)
    started = perf_counter()
    peer.fit(features, labels)
    seconds = perf_counter() - started
    w = peer.coef_[0].astype(np.float64)
    margins = features @ w + peer.intercept_[0]
    losses = np.logaddexp(0, margins) - labels * margins
    return seconds, float(losses.sum() + L2 / 2 * w @ w), int(peer.n_iter_[0])
