"""The page at `/`, in a browser: what it shows, a row that is tried, a version that is promoted."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from ctr.api.app import create_app
from ctr.api.operations import Access, Tokens
from ctr.api.operations.sources import RegistrySource
from ctr.features import parse_spec
from ctr.model import LinearModel, Model, load_model
from ctr.registry import Registry
from tests.api.operations.test_versions import ROWS, until, versions_of
from tests.api.running import Running, run_server

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
MARKUP = '<script>alert("1")</script>'
ADMIN, USER = "administrator-token", "user-of-predictions"


@pytest.fixture
def browser() -> Iterator[Any]:
    """A page, which fails the test when its script does."""
    from playwright.sync_api import sync_playwright

    problems: list[str] = []
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 390, "height": 844})
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console", lambda said: problems.append(said.text) if "Content Security" in said.text else None
        )
        yield page
        chromium.close()
    refused = "the server responded with a status of"
    assert [each for each in problems if refused not in each] == []


def test_its_parts_need_nothing_from_elsewhere(client: httpx.Client, model: Model) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert not re.search(r"https?://", page.text)
    for place in ("page/style.css", "page/script.js"):
        assert place in page.text
        assert client.get(f"/{place}").status_code == 200
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", client.get(f"/{place}").text)
    about = client.get("/page/model").text
    assert model.id in about
    assert all(f'name="{column}"' in about for column in model.spec.columns)
    assert "/page/model" not in client.get("/openapi.json").text


def test_the_documentation_works_without_the_internet(client: httpx.Client) -> None:
    page = client.get("/docs").text
    places = re.findall(r'(?:src|href)="(?!data:)([^"]+)"', page)
    assert len(places) == 4
    for place in places:
        assert client.get(f"/{place}").status_code == 200


@needs_chromium
def test_the_documentation_asks_for_a_token(model: Model, tmp_path: Path, browser: Any) -> None:
    (tmp_path / "tokens").write_text(USER)
    app = Access(create_app(model), Tokens(tmp_path / "tokens", "NONE"), Tokens(None, "NONE"), None)
    with run_server(app) as running:
        assert running.client.get("/openapi.json").status_code == 401
        browser.goto(f"{running.url}/docs")
        browser.fill("#token", "wrong")
        browser.keyboard.press("Enter")
        expect(browser.locator("#login-problem")).to_contain_text("does not accept this token")
        browser.fill("#token", USER)
        browser.keyboard.press("Enter")
        browser.click("#docs .opblock-summary:has-text('/v1/model')")
        browser.click("#docs button:text-is('Try it out')")
        browser.click("#docs button:text-is('Execute')")
        expect(browser.locator("#docs .live-responses-table")).to_contain_text(model.id)


def hostile_model() -> Model:
    """One whose field and optimizer have markup as their names."""
    spec = parse_spec(
        f"""
        version: 1
        source: {{format: delimited, delimiter: ",", header: true}}
        label: click
        bits: 16
        fields: [{{name: '{MARKUP}', type: category}}]
        """,
        "spec.yaml",
    )
    linear = LinearModel.of_weights(np.array([0, 5], np.uint32), np.array([0.5, 1], np.float32))
    return Model.of(spec, linear, {"optimizer": {"name": MARKUP, "passes": 1}})


def test_names_are_text() -> None:
    """Of a field, a label, a value: whatever they are called."""
    with run_server(create_app(hostile_model())) as running:
        about = running.client.get("/page/model").text
    assert "<script" not in about
    assert about.count("&lt;script&gt;") >= 2


@needs_chromium
def test_names_and_values_are_text_in_the_browser(browser: Any) -> None:
    """Also where the script shows them: in bars, and among the fields with unseen values."""
    image = '<img src="x">'
    with run_server(create_app(hostile_model())) as running:
        browser.goto(f"{running.url}/")
        browser.fill("#example input", image)
        browser.click("#example button")
        expect(browser.locator("#result")).to_contain_text(f"{MARKUP} = {image}")
        running.client.post("/v1/predict", json={"rows": [{MARKUP: image}]}).raise_for_status()
        expect(browser.locator("#drift")).to_contain_text(MARKUP)
        assert browser.locator("img").count() == 0
        assert browser.locator("script").count() == 1


def test_a_curve_without_intervals() -> None:
    """As manifests have it that are older than the intervals."""
    bins = [{"mean_prediction": 0.1, "observed_rate": 0.2, "examples": 10, "low": None, "high": None}]
    training = {"logloss": 0.5, "reliability": bins}
    linear = LinearModel.of_weights(np.array([0], np.uint32), np.array([0.5], np.float32))
    model = Model.of(hostile_model().spec, linear, {"metrics": {"holdout": training}})
    with run_server(create_app(model)) as running:
        about = running.client.get("/page/model").raise_for_status().text
    assert '<circle cx="50.0" cy="0.0"' in about
    assert "interval" not in about.replace("95% intervals", "")


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect

    return expect(locator)


@needs_chromium
def test_a_row_is_tried(running: Running, model: Model, browser: Any) -> None:
    browser.goto(f"{running.url}/")
    browser.wait_for_selector("#example")
    assert browser.text_content("#state") == "ready"
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it fits a phone"
    assert model.examples is not None
    (prediction,) = model.predict([model.examples.rows[0]])
    browser.focus("#example button")
    browser.keyboard.press("Enter")
    browser.wait_for_selector(".probability")
    assert browser.text_content(".probability") == f"{100 * prediction:.2f}%"
    bars = browser.query_selector_all("#result .row")
    assert len(bars) >= 3
    browser.fill("#example input[name=age]", "not a number")
    browser.click("#example button")
    browser.wait_for_selector("#result .problem")
    assert "age" in browser.text_content("#result .problem")
    for _ in range(3):
        running.client.post("/v1/predict", json={"rows": ROWS}).raise_for_status()
    expect(browser.locator("#rows")).not_to_have_text("-")
    browser.wait_for_selector("#drift table")
    browser.wait_for_selector("#scores .row")
    assert browser.is_hidden("#administration"), "one model has no versions"


@needs_chromium
def test_a_version_is_promoted_and_rolled_back(
    registry: Registry, models: list[Path], tmp_path: Path, browser: Any
) -> None:
    (tmp_path / "tokens").write_text(USER)
    (tmp_path / "admin").write_text(ADMIN)
    versions = versions_of(RegistrySource(registry.place, ["stable", "canary"]), {"canary": 0.5})
    other = registry.publish(models[1], ["canary"])
    stable = load_model(models[0]).id
    app = Access(versions, Tokens(tmp_path / "tokens", "NONE"), Tokens(tmp_path / "admin", "NONE"), None)
    with run_server(app, wait_ready=False) as running:
        until(lambda: running.client.get("/readyz").status_code == 200)
        browser.goto(f"{running.url}/")
        browser.wait_for_selector("#login:not([hidden])")
        assert other not in browser.content()
        browser.fill("#token", "wrong")
        browser.keyboard.press("Enter")
        expect(browser.locator("#login-problem")).to_contain_text("does not accept this token")
        browser.fill("#token", USER)
        browser.keyboard.press("Enter")
        browser.wait_for_selector("#example")
        browser.wait_for_selector("#versions button[aria-pressed=false]")
        assert stable in browser.text_content("#model")
        browser.click("#versions button[aria-pressed=false]")
        expect(browser.locator("#model")).to_contain_text(other)
        browser.click("#administration summary")
        browser.fill("#admin-token", USER)
        browser.keyboard.press("Enter")
        expect(browser.locator("#admin-said")).to_contain_text(
            "does not accept this token for administration"
        )
        browser.fill("#admin-token", ADMIN)
        browser.keyboard.press("Enter")
        browser.click(f"#registry tr:has-text('{other}') button:text-is('Promote to stable')")
        expect(browser.locator("#admin-said")).to_contain_text(other)
        assert registry.version_of("stable") == other
        browser.click("#registry button:text-is('Roll back stable')")
        expect(browser.locator("#admin-said")).to_contain_text(stable)
        assert registry.version_of("stable") == stable
        (tmp_path / "admin").write_text(f"another-{ADMIN}")
        expect(browser.locator("#admin")).to_be_visible()
        assert browser.locator("#registry button").count() == 0, "the token is no longer valid"
        expect(browser.locator("#state")).to_have_text("ready")


@needs_chromium
def test_the_version_shown_goes_away(registry: Registry, models: list[Path], browser: Any) -> None:
    """The page shows the main version instead, and what was typed stays."""
    versions = versions_of(RegistrySource(registry.place, ["stable", "canary"]), {"canary": 0.5})
    other, stable = registry.publish(models[1], ["canary"]), load_model(models[0])
    with run_server(versions) as running:
        until(lambda: len(running.client.get("/v1/models").json()["served"]) == 2)
        browser.goto(f"{running.url}/")
        browser.click("#versions button[aria-pressed=false]")
        expect(browser.locator("#versions button[aria-pressed=true]")).to_be_focused()
        expect(browser.locator("#model")).to_contain_text(other)
        for column in stable.spec.columns:
            browser.fill(f"#example input[name={column}]", "")
        browser.fill("#example input[name=city]", "東京")
        browser.click("#example button")
        expect(browser.locator(".probability")).to_have_text(shown(load_model(models[1])))
        place = Path(registry.place, "labels.json")
        labels = json.loads(place.read_text())
        del labels["labels"]["canary"]
        place.write_text(json.dumps(labels))
        expect(browser.locator("#model")).to_contain_text(stable.id)
        assert browser.input_value("#example input[name=city]") == "東京"
        browser.click("#example button")
        expect(browser.locator(".probability")).to_have_text(shown(stable))


def shown(model: Model) -> str:
    return f"{100 * model.predict([{'city': '東京'}])[0]:.2f}%"


def test_a_request_may_ask_for_a_version(registry: Registry, models: list[Path]) -> None:
    versions = versions_of(RegistrySource(registry.place, ["stable", "canary"]), {"canary": 0.5})
    other = registry.publish(models[1], ["canary"])
    with run_server(versions) as running:
        until(lambda: len(running.client.get("/v1/models").json()["served"]) == 2)
        for name in ("canary", other):
            for _ in range(5):
                answer = running.client.post(
                    "/v1/predict", json={"rows": ROWS}, headers={"ctr-version": name}
                )
                assert answer.headers["ctr-model"] == answer.json()["model"] == other
        tensor = {"name": "city", "datatype": "BYTES", "shape": [1], "data": ["Köln"]}
        # In the path of the Open Inference Protocol, whatever the share of the canary.
        for k, version in enumerate(10 * [load_model(models[0]).id, other]):
            place = f"/v2/models/ctr/versions/{version}"
            key = {"ctr-request-key": f"{k // 2}"}
            assert running.client.get(f"{place}/ready", headers=key).status_code == 200
            answer = running.client.post(f"{place}/infer", json={"inputs": [tensor]}, headers=key)
            assert answer.json()["model_version"] == answer.headers["ctr-model"] == version
        missing = running.client.post("/v1/predict", json={"rows": ROWS}, headers={"ctr-version": "best"})
        assert missing.status_code == 404
        assert "canary" in missing.json()["detail"]
