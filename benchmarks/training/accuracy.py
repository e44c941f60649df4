"""Log loss and AUC on real data, beside scikit-learn's on the same features in the same run.

The data is not part of the project. `--data` names a folder with any of these files: `criteo_60k.tsv.gz`,
`avazu_10k.csv.gz`, `a9a.libsvm.gz`, `w6a_train.libsvm.gz` and `w6a_test.libsvm.gz`.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.measure import ctr
from ctr.features import Batch, RawSource, load_spec
from ctr.features.inspect import draft_spec


@dataclass(frozen=True)
class Case:
    """A data set, its split, and the settings of both sides."""

    name: str
    spec: str
    """Its name, or `DRAFTED`."""
    file: str
    train_rows: int | None
    """The first rows train, the rest tests; None: the test rows are in `test_file`."""
    c: float
    """scikit-learn's best inverse penalty."""
    options: tuple[str, ...] = ()
    """Of `ctr train`."""
    test_file: str = ""
    shuffle: bool = False
    """For files that are sorted by label."""


DRAFTED = "what `ctr features init` writes"
CASES = (
    Case("criteo", "criteo", "criteo_60k.tsv.gz", 48_000, 0.1),
    Case("criteo, drafted spec", DRAFTED, "criteo_60k.tsv.gz", 48_000, 0.1),
    Case("criteo, 4 x 2,000", "criteo", "criteo_60k.tsv.gz", 48_000, 0.1, ("--workers=4", "--chunk=2000")),
    Case("avazu", "avazu", "avazu_10k.csv.gz", 8_000, 0.3, ("--epochs=10",)),
    Case("a9a", "libsvm", "a9a.libsvm.gz", 26_000, 0.1, ("--epochs=3", "--alpha=0.2", "--l2=3")),
    Case(
        "w6a",
        "libsvm",
        "w6a_train.libsvm.gz",
        None,
        1.0,
        ("--epochs=30", "--alpha=1", "--beta=0.3", "--l1=0.33", "--l2=0.1"),
        "w6a_test.libsvm.gz",
        shuffle=True,
    ),
)


def measure(data: Path, folder: Path) -> None:
    """Print log loss and AUC of both sides for every case whose file is in `data`."""
    heads = f"{'ctr':>20}{'ctr --auto':>20}{'scikit-learn':>20}"
    print(f"\n{'test log loss / AUC':23}{heads}   ratios of log losses")
    for case in CASES:
        if not (data / case.file).exists():
            print(f"  {case.name:21} {data / case.file} is not there: left out")
            continue
        train, test = split(data, folder, case)
        sides = [ours(case, train, test, folder), ours(case, train, test, folder, ("--auto",))]
        sides.append(peers(case, train, test))
        losses = [loss for loss, _ in sides]
        columns = "".join(f"{loss:12.5f} {auc:7.5f}" for loss, auc in sides)
        ratios = "  ".join(f"{loss / losses[-1]:.4f}" for loss in losses[:-1])
        print(f"  {case.name:21}{columns}   {ratios}")


def split(data: Path, folder: Path, case: Case) -> tuple[Path, Path]:
    """Write the train and test rows of a case as files of their own."""
    lines = gzip.decompress((data / case.file).read_bytes()).splitlines(keepends=True)
    head = lines[:1] if case.spec == "avazu" else []
    lines = lines[len(head) :]
    tested = (
        lines[case.train_rows :]
        if case.train_rows
        else gzip.decompress((data / case.test_file).read_bytes()).splitlines(keepends=True)
    )
    suffix = Path(case.file).with_suffix("").suffix
    train, test = folder / f"real-train{suffix}", folder / f"real-test{suffix}"
    train.write_bytes(b"".join(head + lines[: case.train_rows]))
    test.write_bytes(b"".join(head + tested))
    return train, test


def spec_of(case: Case, train: Path) -> str:
    """Its name, or the path of the one drafted for these rows."""
    if case.spec != DRAFTED:
        return case.spec
    drafted = train.with_name("drafted.yaml")
    drafted.write_text(draft_spec(str(train)))
    return str(drafted)


def ours(
    case: Case, train: Path, test: Path, folder: Path, options: Sequence[str] | None = None
) -> tuple[float, float]:
    """Log loss and AUC of a model that ctr trained and evaluated, with options of its own or the case's."""
    options = case.options if options is None else options
    model, hashed = folder / "real.model", folder / "real.hashed"
    if case.shuffle:
        ctr("features", "build", "--spec", spec_of(case, train), train, "--out", hashed, "--shuffle", 0)
        ctr("train", hashed, "--model", model, *options)
    else:
        ctr("train", "--spec", spec_of(case, train), train, "--model", model, *options)
    evaluated = ctr("evaluate", "--model", model, test)
    return evaluated["logloss"], evaluated["auc"]


def peers(case: Case, train: Path, test: Path) -> tuple[float, float]:
    """Log loss and AUC of scikit-learn's L-BFGS on the same features."""
    from sklearn.linear_model import LogisticRegression  # takes longer to load than all the rest
    from sklearn.metrics import log_loss, roc_auc_score

    spec = load_spec(spec_of(case, train))

    def read(path: Path) -> Batch:
        return next(RawSource(spec, [path]).batches(1_000_000))

    learnt, evaluated = read(train), read(test)
    used = np.unique(learnt.slots)  # scikit-learn holds its coefficients densely
    matrices = [batch.to_scipy(spec.bits)[:, used] for batch in (learnt, evaluated)]
    model = LogisticRegression(C=case.c, max_iter=1_000).fit(matrices[0], learnt.labels)
    predictions = model.predict_proba(matrices[1])[:, 1]
    return log_loss(evaluated.labels, predictions), roc_auc_score(evaluated.labels, predictions)
