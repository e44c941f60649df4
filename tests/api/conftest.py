"""A small model that is really trained, and a server for it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import ctr
from ctr.api.app import create_app
from ctr.features import FeatureSpec, parse_spec
from ctr.jobs import run_train_job
from ctr.model.artifact import load_model
from ctr.model.model import Model
from ctr.registry import Registry
from ctr.settings import TrainJob
from tests.api.running import Running, run_server

SPEC = r"""
version: 1
source:
  format: delimited
  delimiter: "\t"
  header: false
  columns: [click, age, price, city, device, note]
label: click
bits: 16
fields:
  - {name: age, type: number, transform: log, missing: feature}
  - {name: price, type: number, transform: edges, edges: [-1.5, 0, 0.25, 10]}
  - {name: city, type: category}
  - {name: device, type: category, missing: feature}
  - {name: note, type: category}
crosses:
  - {name: cityxdevice, of: [city, device]}
"""
COLUMNS = ("click", "age", "price", "city", "device", "note")
CITIES = ("Köln", "東京", "new york", "0", "", '"quoted"', "\\", "null")
DEVICES = ("phone", "tv", "12345678901234567890", "-1", "")


@pytest.fixture(scope="session")
def spec() -> FeatureSpec:
    return parse_spec(SPEC, "tests/api/conftest.py")


@pytest.fixture(scope="session")
def raw_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,500 rows as they would stand in a log: missing cells, negative and fractional numbers, any text."""
    draw = random.Random(7)
    lines = []
    for _ in range(1_500):
        age = draw.choice(("", "-2", "0", "1", "2", "3", str(draw.randint(4, 10**6))))
        price = draw.choice(("", "-1.5", "0.25", "1e3", repr(draw.uniform(-5, 20))))
        city, device = draw.choice(CITIES), draw.choice(DEVICES)
        click = int(draw.random() < (0.7 if city == "東京" or age == "3" else 0.15))
        lines.append("\t".join((str(click), age, price, city, device, f"{draw.getrandbits(9):03x}")))
    path = tmp_path_factory.mktemp("raw") / "clicks.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def raw_rows(raw_file: Path) -> list[dict[str, str]]:
    """The same rows as a client would send them: each cell's text by its column, without the label."""
    lines = raw_file.read_text(encoding="utf-8").split("\n")[:-1]
    return [dict(zip(COLUMNS[1:], line.split("\t")[1:], strict=True)) for line in lines]


@pytest.fixture(scope="session")
def model_dir(raw_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "spec.yaml").write_text(SPEC, encoding="utf-8")
    job = TrainJob(
        inputs=[raw_file],
        spec=str(folder / "spec.yaml"),
        model=folder / "model",
        chunk=256,
    )
    return run_train_job(job).saved_to


@pytest.fixture(scope="session")
def model(model_dir: Path) -> Model:
    return load_model(model_dir)


@pytest.fixture(scope="session")
def running(model: Model) -> Iterator[Running]:
    with run_server(create_app(model)) as running:
        yield running


@pytest.fixture(scope="session")
def client(running: Running) -> httpx.Client:
    return running.client


@pytest.fixture(scope="session")
def models(raw_file: Path, model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three models of the same spec."""
    folder = tmp_path_factory.mktemp("versions")
    for alpha in (0.2, 0.3):
        ctr.train(raw_file, model_dir / "features.yaml", alpha=alpha, model=folder / str(alpha))
    return [model_dir, folder / "0.2", folder / "0.3"]


@pytest.fixture
def registry(tmp_path: Path, models: list[Path]) -> Registry:
    """The first model is stable."""
    registry = Registry(tmp_path / "registry")
    registry.init()
    registry.publish(models[0], ["stable"])
    return registry
