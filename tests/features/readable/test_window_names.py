"""What windows give a row has a text, in whose bounds the number is that the row has."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ctr.features import FeatureSpec, RawSource, load_spec
from ctr.features.readable import window_names
from ctr.features.windows import Windows

SPEC = {
    "version": 1,
    "source": {"format": "delimited"},
    "label": "click",
    "bits": 32,
    "bias": False,
    "fields": [{"name": "site", "type": "category"}],
    "windows": [
        {
            "name": "w",
            "key": ["site", "ad"],
            "time": "at",
            "format": "unix",
            "spans": ["1d"],
            "half_life": "10d",
            "features": ["count", "clicks", "rate", "since_last"],
            "delay": "0s",
            "strength": 1,
        }
    ],
}


def texts_of(rows: list[str], folder: Path) -> list[dict[str, str]]:
    """The windows' features of each row: interval and unit, by the name of the feature."""
    (folder / "log.csv").write_text("\n".join(["click,site,ad,at", *rows]) + "\n")
    spec = FeatureSpec.model_validate(SPEC)
    names = window_names(spec, 1e4)
    assert names is not None
    known = dict(zip(names["slot"].to_pylist(), names["feature"].to_pylist(), strict=True))
    (batch,) = RawSource(spec, [str(folder / "log.csv")], windows=Windows(spec)).batches(10_000)
    found = []
    for first, last in pairwise(batch.indptr.tolist()):
        texts = [known[slot] for slot in batch.slots[first:last].tolist() if slot in known]
        assert len(texts) == last - first - 1  # all but the site
        found.append(dict(text.split("=", 1) for text in texts))
    return found


def holds(text: str, number: float) -> bool:
    """Whether the interval of the text has the number in it."""
    found = re.match(r"\[(\S+), (\S+)\) ", text)
    assert found is not None
    return float(found[1]) <= number < float(found[2])


def test_texts_are_those_of_the_numbers_that_rows_have(tmp_path: Path) -> None:
    # All at one time, so nothing is too old yet.
    found = texts_of([f"{int(k % 3 == 0)},a,x,1000" for k in range(900)], tmp_path)
    assert found[0].keys() == {"w.count.1d", "w.count.half_10d"} | {
        key for key in found[0] if key.startswith(("w.clicks", "w.rate"))
    }
    for k, texts in enumerate(found):
        assert holds(texts["w.count.1d"], k), (k, texts)
        assert holds(texts["w.count.half_10d"], k + 1e-9), (k, texts)
        assert texts["w.count.1d"].endswith(") rows of site, ad")
        if k:
            assert texts["w.since_last"] == "[0, 1) s since the last row of site, ad"


@pytest.mark.parametrize("seconds", [1, 2, 3, 59, 3_600, 86_399])
def test_seconds_since_the_last_row(seconds: int, tmp_path: Path) -> None:
    second = texts_of(["1,a,x,0", f"0,a,x,{seconds}"], tmp_path)[1]
    assert holds(second["w.since_last"], seconds)


def test_clicks_and_rates(tmp_path: Path) -> None:
    part = 86_400 // 16
    rows = [f"{int(k < 7)},a,x,0" for k in range(20)] + [f"0,a,x,{part}"]
    last = texts_of(rows, tmp_path)[-1]
    assert holds(last["w.clicks.1d"], 7)
    assert holds(last["w.rate.1d"], (7 + 7 / 20) / 21)
    assert last["w.rate.1d"].endswith(") clicks per row of site, ad")


def test_buckets_that_cannot_occur_are_left_out() -> None:
    few, many = (window_names(FeatureSpec.model_validate(SPEC), rows) for rows in (100, 1e9))
    assert few is not None
    assert many is not None
    assert few.num_rows < many.num_rows / 2
    last = [text for text in few["feature"].to_pylist() if text.startswith("w.count.1d")][-1]
    assert float(last.split("[")[1].split(",")[0]) <= 100 < float(last.split(", ")[1].split(")")[0])


def test_a_spec_without_windows_has_none() -> None:
    assert window_names(load_spec("criteo"), 1e4) is None


def test_slots_are_of_the_specs_bits() -> None:
    names = window_names(FeatureSpec.model_validate({**SPEC, "bits": 4}), 1e4)
    assert isinstance(names, pa.Table)
    slots = names["slot"].to_numpy()
    assert slots.min() >= 1
    assert slots.max() < 16
    assert np.all(names["count"].is_null().to_numpy())
