"""The data of the comparison, each case as files for ctr and as sparse matrices for the peers."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse

from benchmarks.measure import ctr
from benchmarks.peers.rare_log import SPEC, write_log
from ctr.features import RawSource, load_spec
from ctr.features.inspect import draft_spec

RARE_ROWS = 100_000
DRAFTED = "what `ctr features init` writes"


@dataclass(frozen=True)
class Case:
    """Rows to train on, rows to test on, and the spec of both."""

    name: str
    make: Callable[[Path, Path], tuple[str, Path, Path] | None]
    """From the folders of real data and of what is made: spec, training file, test file; None: not there."""
    about: str
    """What the rows are."""
    grid: str = "best"
    """Of settings of the peers: `best`, chosen on the test rows, or `fast`, one pass at one setting."""
    shuffle: bool = False
    """For files that are sorted by label."""
    river_rows: int = 60_000
    """Of training rows, for it takes longer than all others together."""


def _real(
    name: str, spec: str, rows: int | None, test: str = ""
) -> Callable[[Path, Path], tuple[str, Path, Path] | None]:
    def make(data: Path, folder: Path) -> tuple[str, Path, Path] | None:
        if not (data / name).exists():
            return None
        lines = gzip.decompress((data / name).read_bytes()).splitlines(keepends=True)
        head = lines[:1] if spec == "avazu" else []
        body = lines[len(head) :]
        others = (
            gzip.decompress((data / test).read_bytes()).splitlines(keepends=True) if test else body[rows:]
        )
        suffix = Path(name).with_suffix("").suffix
        paths = folder / f"train{suffix}", folder / f"test{suffix}"
        for path, part in zip(paths, (body[:rows], others), strict=True):
            path.write_bytes(b"".join(head + part))
        if spec == DRAFTED:
            drafted = folder / "drafted.yaml"
            drafted.write_text(draft_spec(str(paths[0])))
            return str(drafted), *paths
        return spec, *paths

    return make


def _rare(_: Path, folder: Path) -> tuple[str, Path, Path]:
    spec, train, test = folder / "rare.yaml", folder / "train.csv", folder / "test.csv"
    spec.write_text(SPEC)
    write_log(train, test, RARE_ROWS)
    return str(spec), train, test


def _synthetic(rows: int) -> Callable[[Path, Path], tuple[str, Path, Path]]:
    def make(_: Path, folder: Path) -> tuple[str, Path, Path]:
        log, paths = folder / "log.tsv", (folder / "train.tsv", folder / "test.tsv")
        ctr("synth", "--rows", rows + rows // 10, "--out", log)
        with log.open() as lines:
            for path, count in zip(paths, (rows, rows // 10), strict=True):
                with path.open("w") as out:
                    out.writelines(next(lines) for _ in range(count))
        return "criteo", *paths

    return make


def cases(rows: int) -> list[Case]:
    """All of them; `rows` of the synthetic one."""
    return [
        Case(
            "criteo",
            _real("criteo_60k.tsv.gz", "criteo", 48_000),
            "Criteo's display advertising challenge: the first rows of its log, in the order of time.",
        ),
        Case(
            "criteo, drafted spec",
            _real("criteo_60k.tsv.gz", DRAFTED, 48_000),
            "The same rows with other features, those of the spec that `ctr features init` writes for them: "
            "numbers in buckets of equally many rows.",
        ),
        Case("avazu", _real("avazu_10k.csv.gz", "avazu", 8_000), "Avazu's challenge: an hour of its log."),
        Case("a9a", _real("a9a.libsvm.gz", "libsvm", 26_000), "Census income, few and dense features."),
        Case(
            "w6a",
            _real("w6a_train.libsvm.gz", "libsvm", None, "w6a_test.libsvm.gz"),
            "Web pages, sorted by label: shuffled here.",
            shuffle=True,
        ),
        Case(
            "0.2% clicks",
            _rare,
            "Made in the columns of TalkingData's challenge: about one row in 500 is positive.",
        ),
        Case(
            "synthetic",
            _synthetic(rows),
            "`ctr synth`, in Criteo's columns: one pass each, at settings of the same kind.",
            grid="fast",
            river_rows=20_000,
        ),
    ]


def write_matrices(
    spec: str, train: Path, test: Path, folder: Path, river_rows: int, *, shuffle: bool
) -> int:
    """The rows as peers take them, of all the columns that occur in training; returns how many those are."""
    loaded = load_spec(spec)
    columns = None
    for part, path in (("train", train), ("test", test)):
        batches = list(RawSource(loaded, [path]).batches(1 << 20))
        matrix = sparse.vstack([batch.to_scipy(loaded.bits) for batch in batches], format="csr")
        labels = np.concatenate([batch.labels for batch in batches])
        if columns is None:
            columns = np.unique(matrix.indices)
        matrix = matrix[:, columns].astype(np.float64)
        if shuffle and part == "train":
            order = np.random.default_rng(0).permutation(len(labels))
            matrix, labels = matrix[order], labels[order]
        matrix.indices, matrix.indptr = matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)
        few = folder / "few"
        few.mkdir(exist_ok=True)
        taken = river_rows if part == "train" else len(labels)
        for place, count in ((folder, len(labels)), (few, taken)):
            sparse.save_npz(place / f"{part}.npz", matrix[:count], compressed=False)
            np.save(place / f"{part}.npy", labels[:count])
    assert columns is not None
    return len(columns)
