"""Whether rows come in the order of their times, against the rows themselves."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctr.features import FeatureSpec
from ctr.features.inspect import check

T0 = 1_510_000_000
WINDOW = {
    "name": "w",
    "key": ["site"],
    "time": "at",
    "format": "unix",
    "features": ["count"],
    "spans": ["1h"],
}


def spec_of(*fields: dict[str, Any], **more: object) -> FeatureSpec:
    site = {"name": "site", "type": "category"}
    spec = {"version": 1, "source": {"format": "delimited"}, "label": "click", "fields": [site, *fields]}
    return FeatureSpec.model_validate(spec | more)


def hour_of(column: str, time_format: str | None = "unix") -> dict[str, Any]:
    return {"name": f"hour of {column}", "column": column, "type": "time", "transform": "hour"} | (
        {"format": time_format} if time_format else {}
    )


def write(path: Path, times: list[Any], column: str = "at") -> str:
    path.write_text(f"click,site,{column}\n" + "".join(f"{k % 2},a,{t}\n" for k, t in enumerate(times)))
    return str(path)


def test_rows_in_order(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{k}.csv", [T0 + k, T0 + k, "", T0 + k + 1.5]) for k in range(2)]
    (order,) = check(spec_of(hour_of("at")), files, 100).times
    assert (order.column, order.read_by, order.rows) == ("at", ["hour of at"], 6)
    assert not order.in_order  # the second file begins before the first one ends
    assert (order.back, order.furthest_back_s) == (2, 0.5)
    (order,) = check(spec_of(hour_of("at")), files[:1], 100).times
    assert (order.in_order, order.back, order.furthest_back_s, order.warnings) == (True, 0, 0, [])
    first, last = (datetime.fromtimestamp(t, UTC).isoformat() for t in (T0, T0 + 1.5))
    assert (order.first, order.last) == (first.replace("+00:00", "Z"), "2017-11-06T20:26:41.500000Z")
    assert datetime.fromisoformat(order.last or "") == datetime.fromisoformat(last)


@pytest.mark.parametrize("rows", [100, 5_000])
def test_how_far_back(tmp_path: Path, rows: int) -> None:
    times = (T0 + np.random.default_rng(3).integers(0, 10_000, 4_000)).tolist()
    seen = times[:rows]
    back = [max(seen[: k + 1]) - at for k, at in enumerate(seen)]
    (order,) = check(
        spec_of(windows=[WINDOW | {"slack": "10m"}]), [write(tmp_path / "log.csv", times)], rows
    ).times
    assert (order.rows, order.back, order.furthest_back_s) == (len(seen), sum(b > 0 for b in back), max(back))
    assert order.period_s == max(seen) - min(seen)
    late = sum(b > 600 for b in back)
    assert (
        f"{late:,} of {len(seen):,} rows are earlier than a row before them by more than its slack, 10m"
        in (order.warnings[0])
    )


def test_several_windows_warn_once(tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", [7, 5, 9, 8])
    windows = [
        WINDOW | {"name": name, "slack": slack} for name, slack in (("v", "0s"), ("w", "0s"), ("x", "1s"))
    ]
    (order,) = check(spec_of(windows=windows), [log], 100).times
    assert [warning.split(" rows are")[0] for warning in order.warnings] == [
        "windows 'v', 'w': 2 of 4",
        "window 'x': 1 of 4",
    ]


def test_a_window_says_what_slack_would_do(tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", [T0, T0 + 900, T0 + 0.5, T0 + 901])
    spec = spec_of(hour_of("at"), windows=[WINDOW])
    found = check(spec, [log], 100)
    (order,) = found.times
    assert order.read_by == ["hour of at", "w"]
    assert order.warnings == [
        "window 'w': 1 of 4 rows are earlier than a row before them by more than its slack, 0s, and so are"
        " bad rows; sort the rows by 'at', or set slack: 900s"
    ]
    assert found.warnings[0] == order.warnings[0]
    assert "at" not in found.unused
    (told,) = json.loads(json.dumps(found.to_json()))["times"]
    assert (told["in_order"], told["furthest_back_s"], told["format"]) == (False, 899.5, "unix")
    assert check(spec_of(windows=[WINDOW | {"slack": "900s"}]), [log], 100).times[0].warnings == []
    served = tmp_path / "served.csv"  # rows that carry their window features need no order
    served.write_text(Path(log).read_text().replace("\n", ",\n").replace(",\n", ",ctr:windows\n", 1))
    (order,) = check(spec_of(windows=[WINDOW]), [served], 100).times
    assert (order.back, order.warnings) == (1, [])
    far = write(tmp_path / "far.csv", [T0, T0 + 90_000, T0])
    (order,) = check(spec_of(windows=[WINDOW]), [far], 100).times
    assert order.warnings[0].endswith("sort the rows by 'at'")  # no slack may be longer than a span


def test_a_holdout_by_time_needs_one_column_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = [f"{k % 2},a,{T0 + 60 * k - 90 * (k == 7)},2017-11-{28 - k % 28:02}" for k in range(300)]
    path.write_text("\n".join(["click,site,at,born", *rows]) + "\n")
    at, born = hour_of("at"), {"name": "born", "type": "time", "transform": "weekday"}
    one_late = check(spec_of(at, born), [str(path)], 1_000)
    assert [each.back for each in one_late.times] == [1, 289]
    assert not [warning for each in one_late.times for warning in each.warnings]
    (order,) = check(spec_of(born), [str(path)], 1_000).times
    assert order.warnings == [
        "column 'born': 289 of 300 rows are earlier than a row before them; if it is the time of the rows,"
        " --holdout-fraction would not keep out the latest: sort the rows by it, or keep out a period with"
        " --holdout-where"
    ]


def test_without_a_time(tmp_path: Path) -> None:
    assert check(spec_of(), [write(tmp_path / "log.csv", [1, 2])], 100).times == []
    log = write(tmp_path / "none.csv", ["", ""])
    (order,) = check(spec_of(hour_of("at")), [log], 100).times
    assert (order.rows, order.in_order, order.first, order.last, order.warnings) == (0, True, None, None, [])
