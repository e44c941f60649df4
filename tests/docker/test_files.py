"""What Docker Compose, Kubernetes, Prometheus and Grafana are given is valid, and fits together."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import numpy as np
import pytest
import yaml
from compose_spec import PyCompose

import ctr
from ctr.api.app import create_app
from tests.api.running import run_server
from tests.docker.files import DOCKER, SECRETS, MissingVariableError, compose, manifests, pod_of

DATA = {"CTR_DATA": "/home/ads/clicks"}
OF_REDIS_EXPORTER = {"redis_memory_used_bytes", "redis_commands_processed_total", "redis_connected_clients"}


def test_compose_takes_the_file() -> None:
    text = yaml.safe_dump(compose(SECRETS | DATA))
    assert set(PyCompose.from_yaml(text).services or {}) >= {"train", "worker", "serve", "grafana"}


@pytest.mark.parametrize("missing", [*SECRETS, *DATA])
def test_compose_stops_without_a_secret(missing: str) -> None:
    variables = {name: value for name, value in (SECRETS | DATA).items() if name != missing}
    with pytest.raises(MissingVariableError, match=f"^{missing}: set it to "):
        compose(variables)


def test_no_secret_stands_in_a_file() -> None:
    for path in DOCKER.rglob("*"):
        if path.is_file():
            assert not re.search(
                r"(?i)password['\"]?\s*[:=]\s*['\"]?[a-z0-9]{4,}\s*$", path.read_text(), re.M
            ), path


def test_images_are_pinned() -> None:
    images = [service["image"] for service in compose(SECRETS | DATA)["services"].values()]
    images += re.findall(r"^FROM (\S+)", (DOCKER / "Dockerfile").read_text(), re.M)
    images += re.findall(
        r"image: ([^\s,}]+)", "".join(path.read_text() for path in DOCKER.glob("k8s/*.yaml"))
    )
    assert all(image == "ctr" or re.search(r":v?\d+\.\d+\.\d+", image) for image in images), images


@pytest.mark.parametrize(
    "document", manifests(), ids=lambda each: f"{each['kind']}-{each['metadata']['name']}"
)
def test_kubernetes_takes_the_object(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, "1.31", strict=True)


def test_two_commands_never_lead_one_job() -> None:
    """By default, a pod that is being evicted and still writes its checkpoint is replaced already."""
    (job,) = (each for each in manifests() if each["kind"] == "Job" and each["metadata"]["name"] == "train")
    assert job["spec"]["podReplacementPolicy"] == "Failed"


def test_every_manifest_is_named_once() -> None:
    kustomization = yaml.safe_load((DOCKER / "k8s" / "kustomization.yaml").read_text())
    files = {path.name for path in (DOCKER / "k8s").iterdir()} - {"kustomization.yaml"}
    generated = {name for each in kustomization["configMapGenerator"] for name in each["files"]}
    assert sorted([*kustomization["resources"], *generated]) == sorted(files)


def test_containers_have_no_more_rights_than_they_need() -> None:
    for each in manifests():
        if (template := pod_of(each)) is not None:
            pod = template["spec"]
            assert pod["securityContext"]["runAsNonRoot"]
            for container in pod["containers"]:
                assert container["securityContext"]["readOnlyRootFilesystem"]
                assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
                assert container["resources"]["limits"]["memory"]
                for variable in container.get("env", ()):
                    assert "valueFrom" in variable


def test_services_lead_to_ports_of_containers() -> None:
    objects = manifests()
    pods = {
        pod["metadata"]["labels"]["app"]: pod["spec"]["containers"]
        for each in objects
        if (pod := pod_of(each))
    }
    for service in (each for each in objects if each["kind"] == "Service"):
        ports = [
            port for container in pods[service["spec"]["selector"]["app"]] for port in container["ports"]
        ]
        for port in service["spec"]["ports"]:
            target = port.get("targetPort", port["port"])
            assert any(target in (known["name"], known["containerPort"]) for known in ports)


def test_the_dashboard_shows_metrics_that_there_are() -> None:
    spec = "{version: 1, source: {format: parquet}, label: y, fields: [{name: a, type: category}]}"
    rows = {"a": ["x", "y"] * 50, "y": [0, 1] * 50}
    with run_server(create_app(ctr.train(rows, spec))) as running:
        client = running.client
        assert client.post("/v1/predict", json={"rows": [{"a": "x"}] * 3}).status_code == 200
        assert client.get("/nowhere").status_code == 404
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = dict(re.findall(r"^([a-z_]+(?:\{.*?\})?) ([0-9.e+-]+)$", answer.text, re.M))
    assert values["ctr_rows_total"] == "3.0"
    assert values['ctr_requests_total{path="/v1/predict",status="200"}'] == "1.0"
    assert values['ctr_requests_total{path="other",status="404"}'] == "1.0"
    assert values['ctr_request_seconds_count{path="/v1/predict"}'] == "1.0"
    described = re.findall(r"^# TYPE (\S+)", answer.text, re.M)  # some have no sample yet
    known = {name.partition("{")[0] for name in values} | {*described} | OF_REDIS_EXPORTER
    dashboard = json.loads((DOCKER / "monitoring" / "dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    shown = {name for each in expressions for name in re.findall(r"\b(?:ctr|redis)_[a-z_]+", each)}
    assert shown <= known
    assert len(shown) > 5


def test_prometheus_and_grafana_find_what_they_look_for() -> None:
    services = compose(SECRETS | DATA)["services"]
    monitoring = DOCKER / "monitoring"
    prometheus = yaml.safe_load((monitoring / "prometheus.yaml").read_text())
    for job in prometheus["scrape_configs"]:
        for target in job["static_configs"][0]["targets"]:
            assert target.partition(":")[0] in services
    (source,) = yaml.safe_load((monitoring / "datasource.yaml").read_text())["datasources"]
    assert source["url"].split("/")[2].partition(":")[0] in services
    dashboard = json.loads((monitoring / "dashboard.json").read_text())
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {source["uid"]}
    mounts = [mount.split(":")[0] for each in services.values() for mount in each.get("volumes", ())]
    assert all((DOCKER / mount).exists() for mount in mounts if mount.startswith("./"))
    (provider,) = yaml.safe_load((monitoring / "dashboards.yaml").read_text())["providers"]
    inside = [mount.split(":")[1] for mount in services["grafana"]["volumes"]]
    assert any(Path(each).parent == Path(provider["options"]["path"]) for each in inside)
    assert np.unique([panel["id"] for panel in dashboard["panels"]]).size == len(dashboard["panels"])
