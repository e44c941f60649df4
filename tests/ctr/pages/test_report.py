"""The page of evaluated models: whole in itself, with the numbers of the JSON, whatever the names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import ctr
from ctr.pages.page import UNKNOWN, weight_mass
from tests.command_line import Cli

SPEC = """
version: 1
source: {format: delimited, ignore: [device]}
label: click
bits: 12
fields:
  - {name: site, type: category}
  - {name: ad, type: category}
"""
NASTY = "<script>alert('&')</script>"
ROWS = 4_000


class Page(HTMLParser):
    """Elements, addresses, tables by row, and the text of a page; every element that is open gets closed."""

    VOID = ("meta", "br", "hr", "img", "link", "input")

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.metrics: dict[str, list[str]] = {}
        self.rows: list[list[str]] = []
        self.sizes: list[float] = []
        self._open: list[str] = []
        self._metric: str | None = None
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.addresses += [str(given[name]) for name in ("href", "xlink:href", "src") if name in given]
        self.sizes += [
            float(size) for size in re.findall(r"font(?:-size)?: ([\d.]+)px", given.get("style") or "")
        ]
        if tag not in self.VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._metric = given.get("data-metric")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
            if self._metric:
                self.metrics.setdefault(self._metric, []).append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with a nasty value, and a model with a nasty name."""
    rng = np.random.default_rng(5)
    folder = tmp_path_factory.mktemp("reported")
    sites, ads = rng.integers(0, 40, ROWS), rng.integers(0, 5, ROWS)
    devices = rng.choice(["phone", NASTY, ""], ROWS, p=[0.6, 0.3, 0.1])
    clicks = rng.random(ROWS) < (sites + 5) / 140
    rows = [f"{c:d},s{s},a{a},{d}" for c, s, a, d in zip(clicks, sites, ads, devices, strict=True)]
    (folder / "log.csv").write_text("click,site,ad,device\n" + "\n".join(rows) + "\n")
    ctr.train(folder / "log.csv", SPEC, alpha=0.5).save(folder / "$a$ <b>model")
    return folder


@pytest.fixture(scope="module")
def made(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model from a data set with a dictionary, trained in several chunks."""
    from ctr.cli.commands import command_line

    out = tmp_path_factory.mktemp("made")
    (out / "spec.yaml").write_text(SPEC)
    for words in (
        [
            "features",
            "build",
            "--spec",
            out / "spec.yaml",
            folder / "log.csv",
            "--dictionary",
            100,
            "--out",
            out / "h",
        ],
        ["train", out / "h", "--chunk", 1000, "--model", out / "model"],
    ):
        assert not command_line()([str(word) for word in words], standalone_mode=False)
    return out / "model"


@pytest.fixture
def reported(cli: Cli, folder: Path, made: Path, tmp_path: Path) -> tuple[Path, dict[str, object]]:
    """The page of both models, and the JSON of the same run."""
    page, summary = tmp_path / "report.html", tmp_path / "summary.json"
    words = ["evaluate", "--model", made, "--model", folder / "$a$ <b>model", folder / "log.csv"]
    done = cli(*words, "--by", "device", "--report", page, "--json", summary)
    assert done.code == 0
    assert f"the report is in {page}" in done.out
    return page, json.loads(summary.read_text())


def test_the_page_needs_nothing_and_has_the_numbers_of_the_json(
    reported: tuple[Path, dict[str, object]], made: Path
) -> None:
    text, told = reported[0].read_text(), reported[1]
    page = Page(text)
    assert {"script", "link", "img", "iframe", "object", "embed"}.isdisjoint(page.tags)
    assert all(address.startswith("#") for address in page.addresses)
    assert re.findall(r"url\((?!#)[^)]*\)|@import", text) == []
    assert set(re.findall(r"https?://[^\"'\s<)]+", text)) <= {
        "http://www.w3.org/2000/svg",  # names of kinds of elements, which nobody fetches
        "http://www.w3.org/1999/xlink",
    }
    assert '<meta name="viewport" content="width=device-width' in text
    others = told["others"]
    assert isinstance(others, list)
    for name in ("logloss", "normalized_entropy", "auc", "calibration", "mean_prediction", "base_rate"):
        assert page.metrics[name] == [f"{told[name]:.5f}", f"{others[0][name]:.5f}"]
    against = others[0]["against_first"]
    for head, key in (("Log loss against A", "logloss"), ("95% from", "low"), ("95% to", "high")):
        assert [head, "-", f"{against[key]:+.5f}"] in page.rows
    slices = [facts["slices"]["device"]["values"] for facts in (told, others[0])]
    for first, second in zip(*slices, strict=True):  # the models stand side by side, metric by metric
        shown = [
            f"{of_model[name]:.5f}"
            for name in ("logloss", "calibration", "auc", "normalized_entropy")
            for of_model in (first, second)
        ]
        value = "(missing)" if first["value"] is None else first["value"]
        assert [value, f"{first['examples']:,}", f"{first['base_rate']:.5f}", *shown] in page.rows
    # ROC, precision-recall, reliability, lift, scores, learning, weights of both
    assert page.tags.count("svg") == 8
    for words in (
        "false positive rate",
        "recall (share of clicks found)",
        "log loss (nats)",
        "Settings",
        "Lineage",
    ):
        assert words in text
    manifest = json.loads((made / "manifest.json").read_text())
    assert len(manifest["training"]["learning_curve"]) == 4
    assert ["alpha", "0.1", "0.5"] in page.rows
    # Pictures have the colours of the page, light or dark.
    pictures = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert set(re.findall(r"(?:fill|stroke): ([^;\"]*)", pictures)) <= {
        "none",
        *(f"var({name})" for name in re.findall(r"--[\w-]+", text.partition("</style>")[0])),
    }
    assert min(page.sizes) >= 12  # and a picture is never smaller than it was drawn, from 360 pixels on


def test_names_and_values_are_text(reported: tuple[Path, dict[str, object]]) -> None:
    text = reported[0].read_text()
    assert NASTY not in text
    assert "<b>model" not in text
    assert "&lt;script&gt;" in text
    assert "$a$ &lt;b&gt;model" in text


def test_wrong_use_is_told_before_any_work(
    cli: Cli, folder: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["evaluate", "--model", made, folder / "log.csv", "--report"]
    assert cli(*words, tmp_path / "report.pdf").code == 2
    assert cli(*words, tmp_path / "none" / "report.html").code == 1
    assert "files only ctr may write" in cli(*words, made / "report.html").err
    monkeypatch.setitem(sys.modules, "jinja2", None)
    done = cli(*words, tmp_path / "report.html")
    assert done.code == 1
    assert "pip install Jinja2" in done.err
    assert list(tmp_path.iterdir()) == []


def test_rows_of_one_label_have_a_page_without_their_curves(
    cli: Cli, folder: Path, made: Path, tmp_path: Path
) -> None:
    (tmp_path / "log.csv").write_text("click,site,ad,device\n0,s1,a1,\n0,s2,a1,\n")
    done = cli("evaluate", "--model", made, tmp_path / "log.csv", "--report", tmp_path / "report.html")
    assert done.code == 0
    page = Page((tmp_path / "report.html").read_text())
    assert page.metrics["auc"] == ["-"]
    assert page.tags.count("svg") == 4


def test_raw_rows_say_which_field_a_weight_belongs_to(
    cli: Cli, folder: Path, made: Path, tmp_path: Path
) -> None:
    page, model = tmp_path / "report.html", folder / "$a$ <b>model"  # has no dictionary
    assert cli("evaluate", "--model", model, folder / "log.csv", "--report", page).code == 0
    section = page.read_text().partition("Weights by field")[2].partition("<h2>")[0]
    assert "<svg" in section
    assert "no texts" not in section
    assert cli("evaluate", "--model", model, made.with_name("h"), "--report", page).code == 0
    assert "Evaluate on raw rows" in page.read_text()


def test_weights_by_field() -> None:
    texts = ["(bias)", "site=a=b", "site=c | ad=d", None, "site*ad=x,y"]
    weights = pa.table({"weight": pa.array([9, -2, 3, 1, 4], pa.float32()), "feature": pa.array(texts)})
    assert weight_mass(weights, {}) == [("site", 0.5), ("site*ad", 0.4), (UNKNOWN, 0.1)]
    assert weight_mass(weights, {"site": 0.1})[0] == ("site*ad", pytest.approx(0.4 / 0.55))
    assert weight_mass(weights.slice(3, 1), {}) == []


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_it_fits_a_phone(reported: tuple[Path, dict[str, object]]) -> None:
    """Chromium lays it out: nothing is wider than the screen, and nothing was to be fetched."""
    probe = reported[0].with_name("probe.html")
    script = "<script>document.title='w'+document.documentElement.scrollWidth+'/'+innerWidth</script>"
    text = re.sub(r"<meta http-equiv[^>]*>", "", reported[0].read_text())
    probe.write_text(text.replace("</body>", script + "</body>"))
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=500,3000",
        "--dump-dom",
    ]
    done = subprocess.run(
        [*command, probe.as_uri()], capture_output=True, text=True, timeout=120, check=False
    )
    found = re.search(r"<title>w(\d+)/(\d+)</title>", done.stdout)
    assert found is not None, done.stderr[-500:]
    assert int(found[1]) <= int(found[2])
