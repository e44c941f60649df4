"""Training with the parameters in real Redis servers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import redis

from ctr.model.artifact import load_model
from tests.command_line import Cli
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis


def summary_of(cli: Cli, log: Path, folder: Path, *flags: object) -> dict[str, object]:
    path = folder / "summary.json"
    words = ["train", "--spec", "criteo", log, "--holdout-fraction", 0.2, "--json", path]
    done = cli(*words, "--model", folder / "model", *flags)
    assert done.code == 0, done.err
    return json.loads(path.read_bytes())


def test_fixed_point_numbers_cost_no_log_loss(cli: Cli, click_log: Path, tmp_path: Path) -> None:
    # With one: several begin with one in memory, and all at once through Redis.
    flags = ["--workers", 1, "--chunk", 1_000, "--consistency", "bsp"]
    exact = summary_of(cli, click_log, tmp_path, *flags)
    stored = summary_of(cli, click_log, tmp_path, *flags, "--store", "embedded://?shards=2")
    for part in ("logloss", "auc"):
        assert stored["holdout"][part] == pytest.approx(exact["holdout"][part], abs=2e-4)
    assert stored["store"] == "embedded://?shards=2"


def test_the_same_job_twice_gives_the_same_bits(
    cli: Cli, click_log: Path, tmp_path: Path, redis_url: str
) -> None:
    """Rounding is drawn from the token: no clock and no random number decides it."""
    ids = set()
    flags = ["--store", f"{redis_url}?model=ads", "--workers", 2, "--chunk", 2_000, "--consistency", "bsp"]
    for _ in range(2):
        summary_of(cli, click_log, tmp_path, *flags)
        ids.add(load_model(tmp_path / "model").id)
    assert len(ids) == 1


def test_a_job_leaves_nothing_in_redis(cli: Cli, click_log: Path, tmp_path: Path, redis_url: str) -> None:
    summary = summary_of(cli, click_log, tmp_path, "--store", f"{redis_url}?model=ads")
    assert "@" not in str(summary["store"])  # no password
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0


def test_a_failed_job_can_be_cleared(cli: Cli, click_log: Path, tmp_path: Path, redis_url: str) -> None:
    torn = tmp_path / "torn.tsv"
    torn.write_bytes(click_log.read_bytes() + b"torn\n")
    store = f"{redis_url}?model=ads"
    words = ["train", "--spec", "criteo", torn, "--model", tmp_path / "model", "--store", store]
    failed = cli(*words, "--chunk", 1_000)
    assert failed.code == 1
    public = f"'redis://{store.rpartition('@')[2]}'"
    for command in ("export", "drop"):
        assert f"ctr ps {command} --store {public}" in failed.err
    again = cli(*words)
    assert again.code == 1
    assert "ctr ps drop" in again.err
    password = redis_url.partition("@")[0].rpartition(":")[2]
    dropped = cli("ps", "drop", "--store", store, "--yes")
    assert dropped.code == 0
    assert password not in dropped.out + dropped.err + again.err
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
    assert cli("ps", "drop", "--store", store, "--yes").code == 1


def constants(folder: Path, rows: int, features: str) -> Path:
    """A libsvm file in which a 64th of the rows is a click, and all have the same features."""
    path = folder / "rows.libsvm"
    path.write_text((f"1 {features}\n" + f"0 {features}\n" * 63) * (rows // 64))
    return path


def test_a_small_alpha_finds_the_weights_that_it_finds_in_memory(
    cli: Cli, tmp_path: Path, redis_url: str
) -> None:
    """With a range of 2**17, the sum of gradients ended there: at a weight of a tenth of this."""
    log = constants(tmp_path, 640_000, "1:1")
    words = ["train", log, "--spec", "libsvm", "--alpha", 0.0003, "--chunk", 60_000, "--json", "-"]
    losses = {}
    for store in ("memory://", f"{redis_url}?model=ads"):
        shown = cli(*words, "--epochs", 2, "--holdout", log, "--model", tmp_path / "model", "--store", store)
        assert shown.code == 0, shown.err
        assert "limited range" not in shown.err + shown.out
        facts = json.loads(shown.out)
        losses[store] = facts["holdout"]["logloss"]
        assert facts["moved"] is None or facts["moved"]["saturations"] == {"z": 0, "n": 0}
    assert len(losses) == 2
    assert max(losses.values()) == pytest.approx(min(losses.values()), rel=2e-3)


def test_values_that_do_not_fit_are_told(cli: Cli, tmp_path: Path, redis_url: str) -> None:
    log = constants(tmp_path, 6_400, "1:100000 2:50000")
    words = ["train", log, "--spec", "libsvm", "--model", tmp_path / "model", "--chunk", 1_000]
    shown = cli(*words, "--store", f"{redis_url}?model=ads")
    assert shown.code == 1
    assert "training diverged" in shown.err
    assert not (tmp_path / "model").exists()
    assert re.search(r"in [\d,]+ updates a sum of squared gradients was cut off", shown.err), shown.err
    assert "scale values that are much larger than 1" in shown.err


def test_a_state_that_does_not_fit_is_told(cli: Cli, tmp_path: Path, redis_url: str) -> None:
    log = constants(tmp_path, 6_400, "1:100000 2:50000")
    first = ["train", log, "--spec", "libsvm", "--model", tmp_path / "model", "--alpha", 1e-5]
    assert cli(*first).code == 0
    more = constants(tmp_path, 640, "3:1")
    words = [
        "train",
        more,
        "--warm-start",
        tmp_path / "model",
        "--model",
        tmp_path / "next",
        "--spec",
        "libsvm",
    ]
    shown = cli(*words, "--store", f"{redis_url}?model=ads")
    assert shown.code == 0
    assert "a sum of squared gradients was cut off" in shown.out
