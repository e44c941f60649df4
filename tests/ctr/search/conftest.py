"""A small hashed data set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ctr.features import RawSource, parse_spec, write_dataset

SPEC = """
version: 1
source: {format: delimited}
label: click
bits: 16
fields:
  - {name: site, type: category}
  - {name: ad, type: category}
"""
ROWS, BLOCK = 3_000, 700


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 3,000 rows whose ads and sites are clicked at rates of their own."""
    rng = np.random.default_rng(8)
    path = tmp_path_factory.mktemp("log") / "log.csv"
    sites, ads = rng.integers(0, 30, ROWS), rng.integers(0, 300, ROWS)
    margins = -1.5 + rng.normal(size=30)[sites] + rng.normal(size=300)[ads]
    clicks = rng.random(ROWS) < 1 / (1 + np.exp(-margins))
    lines = (f"{int(click)},s{site},a{ad}\n" for click, site, ad in zip(clicks, sites, ads, strict=True))
    path.write_text("click,site,ad\n" + "".join(lines))
    return path


@pytest.fixture(scope="session")
def hashed(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, hashed in several blocks."""
    out, spec = tmp_path_factory.mktemp("data") / "hashed", parse_spec(SPEC, "spec")
    write_dataset(RawSource(spec, [log], with_fields=True).batches(BLOCK), spec, out, block_rows=BLOCK)
    return out
