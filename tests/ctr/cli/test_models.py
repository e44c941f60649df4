"""`ctr models`, and `ctr train --publish`."""

from __future__ import annotations

import json
import resource
from pathlib import Path

from tests.command_line import Cli


def test_from_training_to_rollback(cli: Cli, click_log: Path, tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    refused = cli("models", "list", "--registry", registry)
    assert refused.code == 1
    assert (
        f"{registry}: there is no registry; `ctr models init --registry {registry}` creates one"
        in refused.err
    )
    assert cli("models", "init", "--registry", registry).out == f"{registry} is a registry\n"
    train = ("train", "--spec", "criteo", click_log, "--model", tmp_path / "model", "--json", "-")
    ids = []
    for alpha in (0.1, 0.2):
        done = cli(*train, "--alpha", alpha, "--publish", f"{registry}@stable")
        assert done.code == 0, done.err
        facts = json.loads(done.out)
        assert facts["published"] == f"{registry}@stable"
        ids.append(facts["model"])
    listed = cli("models", "list", "--registry", registry)
    assert {line.split()[0] for line in listed.out.splitlines()} == {"version", *ids}
    assert cli("models", "publish", tmp_path / "model", "--registry", registry, "--label", "canary").code == 0
    rolled = cli("models", "rollback", "stable", "--registry", registry, "--json", "-")
    assert json.loads(rolled.out)["version"] == ids[0]
    assert f"canary is now {ids[0]}" in cli("models", "label", ids[0], "canary", "--registry", registry).out
    assert f"removed {ids[1]}" in cli("models", "remove", ids[1][:6], "--registry", registry).out
    facts = json.loads(cli("models", "list", "--registry", registry, "--json", "-").out)
    assert [each["id"] for each in facts["versions"]] == ids[:1]
    assert facts["versions"][0]["labels"] == ["canary", "stable"]
    refused = cli("models", "remove", "stable", "--registry", registry)
    assert (refused.code, len(refused.err.splitlines())) == (1, 1)
    (registry / "versions" / ids[0] / "manifest.json").write_text("{")
    listed = cli("models", "list", "--registry", registry)
    assert listed.code == 0
    assert f"version {ids[0]} is damaged" in listed.out


def test_a_full_disk_leaves_nothing_half_published(cli: Cli, click_log: Path, tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    model = tmp_path / "model"
    assert cli("train", "--spec", "criteo", click_log, "--model", model).code == 0
    largest = max(path.stat().st_size for path in model.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest - 1, hard))
    try:
        done = cli("models", "publish", model, "--registry", registry, "--label", "stable")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (done.code, done.out, len(done.err.splitlines())) == (1, "", 1)
    assert f"{registry}: the registry cannot be written" in done.err
    assert [path.name for path in (registry / "versions").iterdir()] == []
    assert not (registry / "labels.json").exists()
    assert cli("models", "publish", model, "--registry", registry, "--label", "stable").code == 0
