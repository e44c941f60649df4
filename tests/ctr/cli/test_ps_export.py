"""`ctr ps export` on real servers, also while a job trains."""

from __future__ import annotations

import json
from contextlib import closing, suppress
from pathlib import Path
from threading import Event
from time import sleep

import numpy as np
import pytest
from numpy.typing import NDArray

from ctr.api.app import create_app
from ctr.distributed.run import StoreSettings, train_distributed
from ctr.errors import StoreError
from ctr.features import DatasetSource, input_files, load_spec
from ctr.features.readable import DICTIONARY
from ctr.learn.rounds import read_out
from ctr.model import input_digests
from ctr.model.artifact import load_model, load_state
from ctr.optimizers.ftrl import Ftrl
from ctr.ps import PartitionDump, parse_redis_url
from ctr.ps.redis import drop_incarnation
from ctr.ps.redis.store import RedisStore
from ctr.ps.wire import INCARNATION, Connection, connect
from ctr.ps.wire.keys import Keys
from tests.api.running import run_server
from tests.command_line import Cli
from tests.ctr.cli.ps_jobs import key_is_in_first_half, keys_in, make_model, named, password, paused, trained
from tests.ctr.distributed_jobs import Command, describe, source_of
from tests.ps.cut_lines import cut_line
from tests.ps.redis_servers import StartRedis, needs_redis

pytestmark = needs_redis


def peak_memory(*words: object) -> int:
    """Bytes of memory, files apart, that a command takes at a time."""
    command, peak = Command(*words), 0
    while command.popen.poll() is None:
        with suppress(OSError, ValueError):  # it has just ended
            status = Path(f"/proc/{command.popen.pid}/status").read_text().split()
            peak = max(peak, 1024 * int(status[status.index("RssAnon:") + 1]))
        sleep(0.002)
    assert command.popen.wait() == 0, command.said
    return peak


class TestExport:
    def test_from_a_running_job(
        self,
        cli: Cli,
        busy: tuple[str, Command],
        job_log: Path,
        tmp_path: Path,
    ) -> None:
        url, job = busy
        before = trained(cli, url, job)["job"]
        folder = tmp_path / "snapshot"
        shown = cli("ps", "export", "--store", named(url), "--model", folder, "--json", "-")
        assert shown.code == 0, shown.err
        facts = json.loads(shown.out)
        model = load_model(folder)
        assert (facts["model"], facts["job"], facts["state"]) == (model.id, before["id"], "running")
        training, exported = model.manifest["training"], model.manifest["exported"]
        assert training["interrupted"]
        assert before["examples"] <= training["examples"] == facts["examples"]
        assert training["inputs"] == [str(job_log)]
        assert training["input_digests"] == input_digests(input_files([job_log]))
        assert training["lineage"] == []
        assert (exported["job"], exported["live_workers"]) == (before["id"], 2)
        assert password(url) not in (folder / "manifest.json").read_text() + shown.out + shown.err
        with paused(url):
            self.use(cli, folder, job_log, before["id"])
        assert job.popen.poll() is None

    def use(self, cli: Cli, folder: Path, log: Path, job: str) -> None:
        """It is a model like any other."""
        evaluated = cli("evaluate", "--model", folder, log, "--json", "-")
        assert json.loads(evaluated.out)["auc"] > 0.6
        with run_server(create_app(load_model(folder))) as server:
            answer = server.client.post("/v1/predict", json={"rows": [{"I1": 5}]}).json()
            assert 0 < answer["predictions"][0] < 1
            assert server.client.get("/v1/model").json()["exported"]["job"] == job
        words = [
            "train",
            "--spec",
            "criteo",
            log,
            "--warm-start",
            folder,
            "--model",
            folder.with_name("next"),
        ]
        assert cli(*words).code == 0

    def test_from_a_failed_job(self, cli: Cli, failed: str, tmp_path: Path) -> None:
        """To the bit what the store holds, with the settings of the job."""
        folder = tmp_path / "rescued"
        before = keys_in(failed)
        shown = cli("ps", "export", "--store", named(failed), "--model", folder)
        assert shown.code == 0, shown.err
        assert "is failed: " in shown.out
        assert keys_in(failed) == before
        model = load_model(folder)
        assert model.manifest["exported"]["state"] == "failed"
        saved = load_state(folder, model.spec)
        assert (saved.optimizer, saved.passes) == (Ftrl(alpha=0.05), 1)
        url = parse_redis_url(named(failed))
        facts = {
            "fingerprint": model.spec.fingerprint,
            **{k: str(v) for k, v in saved.optimizer.to_json().items()},
        }
        z_bits = saved.optimizer.z_bits(8)
        with closing(
            RedisStore(url, bits=model.spec.bits, width=2, facts=facts, z_bits=z_bits, join=True)
        ) as store:
            slots, state = read_out(store)
        np.testing.assert_array_equal(saved.slots, slots)
        np.testing.assert_array_equal(saved.state, state)
        weights = saved.optimizer.weights(state)
        np.testing.assert_array_equal(model.linear.weights, weights[weights != 0])

    def test_what_the_data_set_has_goes_with_it(self, cli: Cli, redis_url: str, tmp_path: Path) -> None:
        log, spec, hashed = tmp_path / "log.csv", tmp_path / "spec.yaml", tmp_path / "hashed"
        log.write_text("y,c,at\n" + "".join(f"{k % 2},v{k % 7},{1_500_000_000 + k}\n" for k in range(900)))
        spec.write_text(
            "version: 1\nsource: {format: delimited}\nlabel: y\nbits: 10\n"
            "fields: [{name: c, type: category}]\nwindows:\n"
            "  - {name: w, key: [c], time: at, format: unix, features: [count], spans: [1h]}\n"
        )
        build = cli("features", "build", "--spec", spec, log, "--out", hashed, "--dictionary", 50)
        assert build.code == 0, build.err
        job = describe(hashed)
        done, _ = train_distributed(
            job, source_of(job), StoreSettings(named(redis_url)), start=None, stop=Event()
        )
        done.store.close()
        words = ("ps", "export", "--store", named(redis_url), "--model", tmp_path / "model", "--json", "-")
        assert json.loads(cli(*words).out)["warnings"] == []
        model, source = load_model(tmp_path / "model"), DatasetSource(hashed)
        assert (tmp_path / "model" / DICTIONARY).read_bytes() == source.dictionary()
        assert model.windows is not None
        assert source.windows is not None
        assert model.windows.keys == 7
        for name, known in source.windows.arrays(0).items():
            np.testing.assert_array_equal(model.windows.arrays(0)[name], known)

        hashed.rename(tmp_path / "elsewhere")
        (warning,) = json.loads(cli(*words).out)["warnings"]
        assert "no dictionary of features, if the data set had one, and its windows know nothing" in warning
        assert f"export it where that is ({hashed}: the job's input is not here" in warning
        assert f"warning: {warning}" in cli(*words[:-2]).out
        lacking = load_model(tmp_path / "model")
        assert lacking.windows is not None
        assert (lacking.windows.keys, (tmp_path / "model" / DICTIONARY).exists()) == (0, False)

    def test_the_memory_that_it_takes(self, job_log: Path, redis_url: str, tmp_path: Path) -> None:
        """It does not grow with the model, which is in files, whose pages the system can take back."""
        job = describe(job_log, load_spec("criteo").model_copy(update={"bits": 25}))
        done, _ = train_distributed(
            job, source_of(job), StoreSettings(named(redis_url)), start=None, stop=Event()
        )
        assert isinstance(done.store, RedisStore)
        size, rng, peaks = done.store.partitions.size, np.random.default_rng(1), list[int]()
        put: dict[int, NDArray[np.int64]] = {}
        with closing(done.store):
            for wanted in (1, 3):
                for partition in range(len(put), wanted):
                    put[partition] = rng.integers(1, 1 << 40, size) * (rng.random(size) < 0.9)
                    state = put[partition].astype(">i8").view(np.uint8).data
                    done.store.dumps.restore(PartitionDump(partition, state, {}))
                peaks.append(
                    peak_memory("ps", "export", "--store", named(redis_url), "--model", tmp_path / "m")
                )
        packed = np.concatenate([*put.values()])
        saved = load_state(tmp_path / "m", job.feature_spec())
        used = np.flatnonzero(packed)
        of_these = slice(used.size)  # after them come those that were trained
        np.testing.assert_array_equal(saved.slots[of_these], used)
        np.testing.assert_array_equal(saved.state[of_these], done.store.unpacked(packed[used]))
        assert peaks[1] - peaks[0] < 4 * used.size, [f"{peak:,}" for peak in peaks]

    @pytest.mark.parametrize("most", [1 << 60, 6_000])
    def test_a_model_that_is_dropped_while_it_is_read(
        self, cli: Cli, failed: str, tmp_path: Path, most: int
    ) -> None:
        """Wholly, or by somebody who is still at it: no node has lost its data."""
        with closing(Connection(connect(parse_redis_url(failed), 5.0), patience_s=5.0)) as connection:
            incarnation = connection.ask(("HGET", Keys("ads").meta, INCARNATION))[0].decode()
        left: list[int] = []

        def drop(data: bytes) -> None:
            if b"\r\nGET\r\n" in data and b":w0" in data and not left:
                with cut_line(failed, most) as line, suppress(StoreError):
                    drop_incarnation(named(line.url), incarnation, patience_s=0.1)
                left.append(keys_in(failed))

        before = keys_in(failed)
        with cut_line(failed, on_data=drop) as line:
            shown = cli("ps", "export", "--store", named(line.url), "--model", tmp_path / "model")
        assert shown.code == 1
        assert "the model 'ads' was dropped while it was read" in shown.err
        assert "lost" not in shown.err
        assert (left == [0]) == (most > 6_000)
        assert left[0] < before

    def test_nothing_tells_what_the_weights_mean(self, cli: Cli, redis_url: str, tmp_path: Path) -> None:
        make_model(redis_url).close()
        shown = cli("ps", "export", "--store", named(redis_url), "--model", tmp_path / "model")
        assert shown.code == 1
        assert "no job" in shown.err
        assert "ctr ps drop" in shown.err
        assert list(tmp_path.iterdir()) == []

    def test_no_model(self, cli: Cli, redis_url: str, tmp_path: Path) -> None:
        shown = cli("ps", "export", "--store", named(redis_url), "--model", tmp_path / "model")
        assert shown.code == 1
        assert "no model 'ads'" in shown.err
        assert keys_in(redis_url) == 0  # nor was one made

    def test_it_replaces_models_only(self, cli: Cli, redis_url: str, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("years of work")
        shown = cli("ps", "export", "--store", named(redis_url), "--model", tmp_path)
        assert shown.code == 1
        assert "thesis.txt" in shown.err

    def test_half_a_model_is_none(self, cli: Cli, start_redis: StartRedis, tmp_path: Path) -> None:
        own = start_redis(2, config={"cluster-require-full-coverage": "no"})
        make_model(own.url).close()
        own.nodes[key_is_in_first_half(Keys("ads").meta)][0].kill()
        shown = cli("ps", "export", "--store", named(own.url), "--model", tmp_path / "model")
        assert shown.code == 1
        assert "partitions cannot be reached" in shown.err
