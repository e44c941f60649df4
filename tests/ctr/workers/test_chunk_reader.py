"""What workers read of raw files: their own data shards, and little else."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ctr.features import Batch, RawSource
from ctr.features.batches import localize
from ctr.features.spec import parse_spec
from ctr.learn import Timings
from ctr.workers.chunk_reader import RankReaders
from tests.ctr.distributed_jobs import describe

SPEC = parse_spec(
    "{version: 1, source: {format: csv, quote: false, ignore: [text]}, label: y,"
    " fields: [{name: c, type: category}]}",
    "spec",
)
RANKS, CHUNK, CHUNKS = 4, 512, 8  # of 2 MiB


def test_four_ranks_read_a_raw_file_about_once(tmp_path: Path) -> None:
    path, text = tmp_path / "log.csv", "x" * 4096
    rows = [f"{i % 3 // 2},v{i},{text}\n" for i in range(CHUNK * CHUNKS)]
    rows[5] = "bad\n"
    path.write_text("y,c,text\n" + "".join(rows))
    once = RawSource(SPEC, [path])
    changes = {"chunk": CHUNK, "workers": RANKS, "on_bad_rows": "skip", "passes": 2}
    job = describe(path, SPEC, splits=once.splits(), **changes)
    source = job.open_source()
    in_order = [next(source.batches(CHUNK, at, at + CHUNK)) for at in range(0, len(rows), CHUNK)]
    readers = RankReaders(job, source.inputs, Timings())
    for number in range(2 * CHUNKS):
        chunk = readers.chunk(number % RANKS, number // RANKS)
        batch = in_order[number % CHUNKS]
        assert chunk is not None
        assert isinstance(batch, Batch)
        assert np.array_equal(chunk.slots, localize(batch).slots)
        assert len(chunk) == CHUNK - (number % CHUNKS == 0)
    readers.keep(())
    blocks = sum(each.blocks_read for each in readers.sources) / 2
    assert blocks <= 2 * source.blocks_read, "each would read all of it: 4 times"
