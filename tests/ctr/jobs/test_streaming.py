"""Training from a stream: every example counts once, whoever is killed; what is wrong is refused."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from time import sleep

import numpy as np
import orjson
import pytest

from ctr.checkpoint import read_checkpoint
from ctr.errors import SettingError
from ctr.features import FeatureSpec
from ctr.jobs.streaming import Quality
from ctr.model import load_model, load_state
from ctr.ps import JobBoard, parse_redis_url
from ctr.registry import Registry
from ctr.settings import TrainJob
from ctr.stream import LANES, ExampleStream
from ctr.workers import WorkerReport
from tests.command_line import Cli
from tests.ctr.distributed_jobs import ADDITIVE, Command, describe, in_memory, process_of
from tests.ps.redis_servers import StartRedis, eventually, needs_redis, timing_sensitive

pytestmark = needs_redis

CHUNK = 50
_names = count()


class Streaming:
    """A stream, and `ctr train` on it."""

    def __init__(self, url: str, log: Path, spec: FeatureSpec, folder: Path) -> None:
        name = f"test-{next(_names)}"
        self.stream_url, self.store_url = f"{url}?stream={name}", f"{url}?model={name}"
        self.model = folder / "model"
        self.stream = ExampleStream(self.stream_url)
        self.rows = json_rows(log, spec)
        self.appended = 0
        self._spec = folder / "spec.yaml"
        self._spec.write_text(spec.to_yaml())

    def append(self, chunks: int) -> None:
        for _ in range(chunks):
            rows = self.rows[self.appended * CHUNK : (self.appended + 1) * CHUNK]
            assert rows
            assert self.stream.append(self.appended, rows, {})
            self.appended += 1

    def turn_bad(self) -> None:
        """From now on, clicks are on the other rows."""
        rows = [orjson.loads(row) for row in self.rows]
        self.rows = 2 * [orjson.dumps(row | {"label": 1 - row["label"]}) for row in rows]

    def words(self, *more: object, additive: bool = True, new: bool = True) -> list[str]:
        optimizer = (f"--alpha={ADDITIVE.alpha}", f"--beta={ADDITIVE.beta}", "--base-rate=0.5")
        words = ("--stream", self.stream_url, "--store", self.store_url, "--spec", self._spec)
        return [
            *map(str, ("train", *words, "--model", self.model, "--lease=0.6", *more)),
            *(optimizer[: 2 + new] if additive else ()),
        ]

    @contextmanager
    def training(self, *more: object, additive: bool = True, new: bool = True) -> Iterator[Command]:
        command = Command(*self.words(*more, additive=additive, new=new))
        try:
            yield command
        finally:
            command.kill()
            command.close()

    def trained(self) -> None:
        eventually(lambda: sum(self.stream.positions()) == self.stream.last()[0], 60.0)

    def stop(self, command: Command) -> str:
        command.popen.send_signal(signal.SIGTERM)
        code, said = command.end()
        assert code == 0, said
        return said


@pytest.fixture
def streaming(redis_url: str, job_log: Path, job_spec: FeatureSpec, tmp_path: Path) -> Iterator[Streaming]:
    streaming = Streaming(redis_url, job_log, job_spec, tmp_path)
    with closing(streaming.stream):
        yield streaming


def json_rows(log: Path, spec: FeatureSpec) -> list[bytes]:
    """The rows of a log in Criteo's columns, as JSON."""
    names = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    rows = []
    for line in log.read_text().splitlines():
        cells = zip(names, line.split("\t"), strict=True)
        row = {name: int(cell) if name[0] in "lI" else cell for name, cell in cells if cell}
        rows.append(orjson.dumps(row))
    return rows


def each_example_counted_once(streaming: Streaming, log: Path, spec: FeatureSpec) -> bool:
    """Each adds a quarter to the second number of its slots."""
    state = load_state(streaming.model, spec)
    rows = streaming.appended * CHUNK
    first = log.with_name(f"first-{rows}.tsv")
    first.write_text("".join(log.read_text().splitlines(keepends=True)[:rows]))
    (slots, expected), _ = in_memory(describe(first, spec, ftrl=ADDITIVE, workers=1))
    assert np.array_equal(state.slots, slots)
    return np.array_equal(np.round(4 * state.state[:, 1]), np.round(4 * expected[:, 1]))


@timing_sensitive
def test_every_example_counts_once_though_a_worker_is_killed(
    streaming: Streaming, job_log: Path, job_spec: FeatureSpec
) -> None:
    streaming.append(10)
    with streaming.training("--workers=2") as command:
        streaming.trained()
        with closing(JobBoard(parse_redis_url(streaming.store_url))) as board:
            board.job()
            view = board.look(shards=False)
            streaming.append(20)
            os.kill(process_of(view, 0), signal.SIGKILL)
            streaming.append(20)
            streaming.trained()
        streaming.stop(command)
    assert each_example_counted_once(streaming, job_log, job_spec)


@timing_sensitive
def test_a_killed_command_goes_on_from_its_checkpoint(
    streaming: Streaming, job_log: Path, job_spec: FeatureSpec, tmp_path: Path, cli: Cli
) -> None:
    checkpoint = tmp_path / "checkpoint"
    options = "--checkpoint", checkpoint, "--checkpoint-every=0.2s"
    streaming.append(10)
    with streaming.training(*options) as command:
        eventually((checkpoint / "manifest.json").exists, 60.0)
        streaming.append(10)
        streaming.trained()
        streaming.append(5)
        command.popen.kill()
    refused = cli(*streaming.words())
    assert "wrote checkpoints, go on with --checkpoint DIR and --resume. Otherwise: the " in refused.err
    sleep(0.6)  # its lease
    commands = ("status",), ("drop",), ("export", "--out", tmp_path / "exported")
    shown = [cli("ps", *words, "--store", streaming.store_url).out for words in commands]
    for out in shown:
        assert "running, but nobody leads it" in out
        assert re.search(r"trained [\d,]+ examples, in all 2\d chunks of the stream", out)
    assert re.search(r"lanes(?:\n| without a worker: )", shown[0])
    with streaming.training(*options, "--resume", new=False) as command:
        streaming.append(5)
        streaming.trained()
        streaming.stop(command)
    assert each_example_counted_once(streaming, job_log, job_spec)


def test_a_job_whose_chunks_redis_has_lost_is_not_resumed(
    streaming: Streaming, tmp_path: Path, cli: Cli
) -> None:
    """It would skip what the joiner appends in their place."""
    options = "--checkpoint", tmp_path / "checkpoint", "--checkpoint-every=0.2s"
    streaming.append(10)
    with streaming.training(*options) as command:
        streaming.trained()
        streaming.stop(command)
    parsed = parse_redis_url(streaming.stream_url)
    with parsed.client(parsed.hosts[0], 10.0) as client:
        client.delete(*client.keys(f"ctr:{{stream:{parsed.stream}:*"))
    ended = cli(*streaming.words(*options, "--resume", new=False))
    assert (ended.code, "Redis has lost chunks; join to another stream" in ended.err) == (1, True)


def test_the_checkpoint_of_an_earlier_job_trims_nothing(
    streaming: Streaming, redis_url: str, job_log: Path, job_spec: FeatureSpec, tmp_path: Path
) -> None:
    checkpoint = "--checkpoint", tmp_path / "checkpoint"
    streaming.append(10)
    with streaming.training(*checkpoint, "--checkpoint-every=0.2s") as command:
        streaming.trained()
        streaming.stop(command)
    (tmp_path / "other").mkdir()
    other = Streaming(redis_url, job_log, job_spec, tmp_path / "other")
    with closing(other.stream):
        other.append(40)
        with other.training(*checkpoint, "--publish-every=1s", additive=False) as command:
            eventually((other.model / "manifest.json").exists, 60.0)  # after the stream was trimmed
            assert other.stream.positions() == [0] * LANES
            other.stop(command)
        assert sum(other.stream.positions()) == 40


def test_a_stream_is_for_one_job(streaming: Streaming, redis_url: str, cli: Cli) -> None:
    other = f"{redis_url}?model=another"
    words = [other if word == streaming.store_url else word for word in streaming.words()]
    streaming.append(10)
    with streaming.training() as command:
        streaming.trained()
        refused = cli(*words)
        assert refused.code == 1
        assert (
            f"the job of {parse_redis_url(streaming.store_url).public} trains on this stream" in refused.err
        )
        assert "stop that one" in refused.err
        streaming.stop(command)
    command = Command(*words)  # at once
    try:
        streaming.append(10)
        streaming.trained()
        streaming.stop(command)
    finally:
        command.kill()
        command.close()


def test_a_stopped_command_goes_on_from_its_model(
    streaming: Streaming, job_log: Path, job_spec: FeatureSpec
) -> None:
    streaming.append(20)
    with streaming.training() as command:
        eventually(lambda: sum(streaming.stream.positions()) > 0, 60.0)
        streaming.append(20)
        streaming.stop(command)  # in the midst of them
    streaming.append(5)
    with streaming.training("--warm-start", streaming.model, new=False) as command:
        streaming.trained()
        streaming.stop(command)
    assert each_example_counted_once(streaming, job_log, job_spec)


def test_a_stream_begins_with_the_weights_of_a_model_of_several_passes(
    streaming: Streaming, job_log: Path, tmp_path: Path, cli: Cli
) -> None:
    former, checkpoint = tmp_path / "former", tmp_path / "checkpoint"
    penalties = "--epochs=3", "--l1=0.2", "--l2=2"
    assert cli("train", job_log, "--spec", tmp_path / "spec.yaml", "--model", former, *penalties).code == 0
    options = "--warm-start", former, "--checkpoint", checkpoint, "--checkpoint-every=0.2s"
    streaming.append(1)
    with streaming.training(*options, additive=False) as command:
        streaming.trained()
        eventually((checkpoint / "manifest.json").exists, 60.0)
        command.popen.kill()
    with streaming.training(*options, "--resume", additive=False) as command:
        streaming.append(1)
        streaming.trained()
        streaming.stop(command)
    before, after = (load_model(path).linear for path in (former, streaming.model))
    weights = dict(zip(before.slots.tolist(), before.weights.tolist(), strict=True))
    moved = [
        abs(w - weights.get(slot, 0.0)) for slot, w in zip(after.slots.tolist(), after.weights, strict=True)
    ]
    assert np.median(moved) < 1e-3  # two chunks move few of the weights; the store rounds all
    assert load_model(streaming.model).manifest["optimizer"]["passes"] == 3


def test_versions_are_published_while_it_runs(streaming: Streaming, tmp_path: Path, cli: Cli) -> None:
    registry = tmp_path / "models"
    streaming.append(40)
    with streaming.training("--publish-every=1s", "--publish", f"{registry}@live", additive=False) as command:
        eventually(lambda: "live" in Registry(registry).labels(), 60.0)
        streaming.trained()
        streaming.stop(command)
    assert cli("model", "info", streaming.model).code == 0
    model = load_model(streaming.model)
    assert model.metrics["progressive"]["examples"] == 40 * CHUNK
    assert Registry(registry).load(Registry(registry).version_of("live")).spec == model.spec


def test_columns_without_values_are_named(streaming: Streaming, tmp_path: Path) -> None:
    renamed = (orjson.loads(row) for row in streaming.rows)
    streaming.rows = [orjson.dumps({"c3_": row.pop("C3", None), **row}) for row in renamed]
    streaming.append(40)
    with streaming.training("--publish-every=1s", additive=False) as command:
        eventually(lambda: "version" in command.said, 60.0)
        said = streaming.stop(command)
    assert said.count("warning: ") == 1
    assert "warning: column 'C3', which the feature spec needs, has no value in the first" in said


def test_a_version_has_the_metrics_of_all_rows_that_its_weights_are_of(
    streaming: Streaming, tmp_path: Path
) -> None:
    """Also right after the start, and after the command was killed."""
    registry, checkpoint = Registry(tmp_path / "models"), tmp_path / "checkpoint"
    options = "--publish-every=1s", "--publish", f"{registry.place}@live", "--checkpoint", checkpoint

    def rows_published() -> int:
        if "live" not in registry.labels():
            return 0
        manifest = registry.load(registry.version_of("live")).manifest
        assert manifest["training"]["rows"] == manifest["metrics"]["progressive"]["examples"]
        return int(manifest["training"]["rows"])

    streaming.append(25)
    with streaming.training(*options, "--checkpoint-every=0.2s", additive=False) as command:
        eventually(rows_published, 60.0)
        assert rows_published() == 25 * CHUNK
        eventually(lambda: checkpoint.exists() and rows_reported(checkpoint) == 25 * CHUNK)
        command.popen.kill()
    streaming.append(25)
    with streaming.training(*options, "--checkpoint-every=1h", "--resume", additive=False) as command:
        eventually(lambda: rows_published() > 25 * CHUNK, 60.0)
        assert rows_published() == 50 * CHUNK
        streaming.stop(command)


def rows_reported(checkpoint: Path) -> int:
    """Rows that the workers' reports in a checkpoint are about."""
    reports = read_checkpoint(checkpoint).reports.values()
    return sum(WorkerReport.from_bytes(report).progressive.examples for report in reports)


def test_a_label_goes_back_when_the_rows_turn_bad(streaming: Streaming, tmp_path: Path) -> None:
    """To one of the latest versions, which alone are kept."""
    registry, versions = Registry(tmp_path / "models"), list[str]()
    streaming.rows *= 2

    def another_is_published() -> bool:
        entry = registry.labels().get("live")
        return entry is not None and entry.version not in versions

    place = f"{tmp_path / 'models'}@live"
    options = "--publish-every=1s", "--publish", place, "--keep-versions=2"
    with streaming.training(*options, additive=False) as command:
        for _ in range(3):
            streaming.append(25)
            eventually(another_is_published, 60.0)
            versions.append(registry.version_of("live"))
        streaming.turn_bad()
        streaming.append(25)
        eventually(lambda: registry.version_of("live") == versions[1], 60.0)
        said = streaming.stop(command)
    assert f"; live is {versions[1]} again (not for servers on --store)" in said
    assert {version.id for version in registry.versions()} == set(versions[1:])
    assert "nothing is published: log loss" in said or "nothing is published: calibration" in said


def test_a_resumed_job_watches_and_rolls_back_what_it_published_before(
    streaming: Streaming, tmp_path: Path
) -> None:
    registry, checkpoint, versions = Registry(tmp_path / "models"), tmp_path / "checkpoint", list[str]()
    streaming.rows *= 2
    options = "--publish-every=1s", "--publish", f"{registry.place}@live", "--checkpoint", checkpoint

    def is_published_and_saved() -> bool:
        entry = registry.labels().get("live")
        rows = streaming.appended * CHUNK
        is_new = entry is not None and registry.load(entry.version).manifest["training"]["rows"] == rows
        return is_new and checkpoint.exists() and rows_reported(checkpoint) == rows

    # On a slow machine, the last rows may be so few that they say nothing of the model.
    never_held_back = "--max-loss-rise=1e9", "--max-miscalibration=1e9"
    with streaming.training(*options, *never_held_back, "--checkpoint-every=0.2s", additive=False) as command:
        for _ in range(2):
            streaming.append(25)
            eventually(is_published_and_saved, 60.0)
            versions.append(registry.version_of("live"))
        command.popen.kill()
    streaming.turn_bad()
    streaming.append(25)
    resumed = *options, "--checkpoint-every=1h", "--resume", "--max-miscalibration=1e9"
    with streaming.training(*resumed, additive=False) as command:
        eventually(lambda: registry.version_of("live") == versions[0], 60.0)
        said = streaming.stop(command)
    assert re.search(rf"nothing is published: log loss .*; live is {versions[0]} again", said)


@pytest.fixture
def labelled(streaming: Streaming, job_log: Path, tmp_path: Path, cli: Cli) -> Registry:
    """A registry with a label `live` on the second of two versions."""
    registry = Registry(tmp_path / "models")
    for number in (1, 2):
        model, alpha = tmp_path / f"former-{number}", f"--alpha=0.{number}"
        assert cli("train", job_log, "--spec", tmp_path / "spec.yaml", "--model", model, alpha).code == 0
        registry.publish(model, ["live"])
    return registry


def test_a_label_that_points_to_a_version_of_others_stays(streaming: Streaming, labelled: Registry) -> None:
    version, place = labelled.version_of("live"), f"{labelled.place}@live"
    streaming.append(25)
    options = "--publish-every=1s", "--publish", place, "--max-miscalibration=1e-9"
    with streaming.training(*options, additive=False) as command:
        eventually(lambda: "nothing is published: calibration" in command.said)
    assert labelled.version_of("live") == version


def test_labels_go_back_though_one_of_them_cannot(streaming: Streaming, labelled: Registry) -> None:
    version, place = labelled.version_of("live"), f"{labelled.place}@new,live"
    streaming.append(25)
    options = "--publish-every=1s", "--publish", place, "--max-loss-rise=0.02"
    with streaming.training(*options, additive=False) as command:
        eventually(lambda: labelled.version_of("live") != version, 60.0)
        streaming.turn_bad()
        streaming.append(25)
        eventually(lambda: labelled.version_of("live") == version, 60.0)
        said = streaming.stop(command)
    assert "label new points to" in said
    assert f"; live is {version} again" in said


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([b'{"price": 3}'] * 4, "label"),
        ([b"no JSON"] * 4, "JSON"),
        ([b'{"label": 0, "site": "a"}', b'{"label": 1}'], "have 'site', and none of the spec's columns"),
        ([b'{"label": 1, "I1": "x"}', b'{"label": 0}', b'{"label": 0}'], "not a number"),
    ],
)
def test_rows_of_something_else_are_refused(
    streaming: Streaming, cli: Cli, rows: list[bytes], complaint: str
) -> None:
    streaming.stream.append(0, rows, {})
    ended = cli(*streaming.words())
    assert ended.code == 1
    assert complaint in ended.err
    assert f"?stream={parse_redis_url(streaming.stream_url).stream}: " in ended.err


def test_nothing_is_forgotten_without_a_model(streaming: Streaming, cli: Cli) -> None:
    streaming.append(1)
    ended = cli(*streaming.words("--forget=0.5"))
    assert (ended.code, "--forget is for what --warm-start has learnt" in ended.err) == (2, True)


def test_chunks_that_are_gone_end_the_job(streaming: Streaming, cli: Cli) -> None:
    streaming.append(40)
    with streaming.stream._connection.nodes.link(parse_redis_url(streaming.stream_url).hosts[0]) as link:
        link.ask(("XTRIM", streaming.stream._keys[3], "MAXLEN", 1))
    ended = cli(*streaming.words())
    assert ended.code == 1
    assert "chunks 0 to 1 of lane 3 are gone" in ended.err


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"inputs": ["day.tsv"]}, "takes the place of inputs"),
        ({"epochs": 2}, "epochs"),
        ({"store": "memory://"}, "redis://"),
        ({"store": "redis://host?stream=a"}, "names a stream, and not a model"),
        ({"stream": "redis://host?model=a"}, "names a model, and not a stream"),
        ({"consistency": "bsp"}, "do not wait for each other"),
        ({"on_bad_rows": "quarantine"}, "rows of a stream stay in no file"),
        ({"on_bad_rows": "skip", "max_bad_fraction": 0.1}, "max_bad_fraction is for inputs"),
        ({"stream": None, "inputs": ["day.tsv"], "max_loss_rise": 0.1}, "is for a stream"),
    ],
)
def test_settings_that_do_not_go_together(settings: Mapping[str, object], complaint: str) -> None:
    given = {"stream": "redis://host?stream=a", "store": "redis://host", "model": "model", "spec": "criteo"}
    with pytest.raises(SettingError, match=complaint):
        TrainJob(**{**given, **settings})


class TestQuality:
    @staticmethod
    def totals(examples: float, logloss: float, calibration: float = 1.0) -> dict[str, float]:
        clicked = examples / 5
        return {
            "weight": examples,
            "loss": logloss * examples,
            "predicted": calibration * clicked,
            "clicked": clicked,
        }

    @staticmethod
    def added(*parts: Mapping[str, float]) -> dict[str, float]:
        return {name: sum(part[name] for part in parts) for name in parts[0]}

    def test_is_of_what_came_since_the_last_look(self) -> None:
        quality = Quality(max_loss_rise=0.1, max_miscalibration=0.1)
        first, second = self.totals(2_000, 0.4), self.totals(3_000, 0.45)
        assert quality.look({"a": first}) is None
        problem = quality.look({"a": self.added(first, second), "b": self.totals(10, 0.4)})
        assert problem is not None
        assert "log loss" in problem
        assert quality.examples == 3_010
        assert quality.look({"a": self.added(first, second, self.totals(5_000, 0.4))}) is None

    def test_few_examples_wait_for_more(self) -> None:
        quality = Quality(max_loss_rise=0.1, max_miscalibration=0.1)
        assert quality.look({"a": self.totals(900, 5.0)}) is None
        assert quality.look({"a": self.totals(1_800, 0.4)}) is None
        assert quality.logloss == pytest.approx(0.4)

    def test_clicks_that_are_missing(self) -> None:
        """As when they are no longer reported; a few may be missing by chance."""
        quality = Quality(max_loss_rise=0.1, max_miscalibration=0.1)
        few, many = (
            {**self.totals(2_000, 0.1), "predicted": number, "clicked": 0.0} for number in (3.0, 30.0)
        )
        assert quality.look({"a": few}) is None
        assert quality.look({"a": many}) == "no rows are clicked, and 30 clicks were predicted"

    @pytest.mark.parametrize("calibration", [0.8, 1.2])
    def test_predictions_that_are_off(self, calibration: float) -> None:
        quality = Quality(max_loss_rise=0.1, max_miscalibration=0.1)
        problem = quality.look({"a": self.totals(2_000, 0.4, calibration)})
        assert problem is not None
        assert "calibration" in problem
        assert quality.usual_logloss is None


def test_evidence_stops_where_it_is_to(streaming: Streaming, job_spec: FeatureSpec) -> None:
    streaming.append(40)
    with streaming.training("--max-evidence=20", additive=False) as command:
        streaming.trained()
        streaming.stop(command)
    state = load_state(streaming.model, job_spec)
    assert state.state[0, 1] == 20
    assert state.state[:, 1].max() == 20
    assert load_model(streaming.model).metrics["progressive"]["normalized_entropy"] < 1.1


@timing_sensitive
def test_every_example_counts_once_though_a_primary_is_killed(
    start_redis: StartRedis, job_log: Path, job_spec: FeatureSpec, tmp_path: Path
) -> None:
    config = {"cluster-node-timeout": "1000", "cluster-replica-validity-factor": "0"}
    servers = start_redis(nodes=3, replicas=1, config=config)
    streaming = Streaming(servers.url, job_log, job_spec, tmp_path)
    with closing(streaming.stream):
        streaming.append(10)
        with streaming.training("--workers=2") as command:
            streaming.trained()
            streaming.append(10)
            servers.nodes[0][0].kill()
            streaming.append(20)
            streaming.trained()
            streaming.stop(command)
    assert each_example_counted_once(streaming, job_log, job_spec)
