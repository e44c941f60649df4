"""Who may ask: tokens, their rotation, labels that are changed by request; TLS, sockets, the log."""

from __future__ import annotations

import json
import signal
import ssl
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import serialization

from ctr.api.app import create_app
from ctr.api.connections import H11Connection, connection_class
from ctr.api.operations import ServingMetrics
from ctr.api.operations.access import Access, Tokens
from ctr.api.operations.sources import FolderSource, RegistrySource
from ctr.errors import CtrError
from ctr.model import Model, load_model
from ctr.registry import Registry
from tests.api.operations.test_versions import answered, until, versions_of
from tests.api.running import run_server
from tests.api.test_app import Wrapped
from tests.api.test_connection import HALF_A_HEADER, LARGE, answer, connect
from tests.api.test_server import server_process
from tests.command_line import Cli
from tests.ps.tls import Certificates

ROWS = {"rows": [{"city": "Köln"}]}
TOKEN, OTHER, ADMIN = "predict-0123456789", "predict-abcdefghij", "admin-0123456789ab"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def tokens(tmp_path: Path) -> tuple[Path, Path]:
    for name, text in (("tokens", f"# two\n{TOKEN}\n\n{OTHER}\n"), ("admin", f"{ADMIN}\n")):
        (tmp_path / name).write_text(text)
    return tmp_path / "tokens", tmp_path / "admin"


def test_all_versions_of_a_registry(
    registry: Registry, models: list[Path], tokens: tuple[Path, Path]
) -> None:
    nobody, admin = Tokens(None, "NONE"), Tokens(tokens[1], "NONE")
    versions = versions_of(RegistrySource(registry.place, ["stable"]))
    with run_server(Access(versions, nobody, admin, None)) as running:  # type: ignore[arg-type]
        client = running.client
        for query in ("all", "all=", "all=1"):
            assert client.get(f"/v1/models?{query}").status_code == 401
            (only,) = client.get(f"/v1/models?{query}", headers=bearer(ADMIN)).json()["available"]
            assert only["labels"] == ["stable"]
        assert "available" not in client.get("/v1/models?al=all", headers=bearer(ADMIN)).json()
        place = Path(registry.place)
        place.rename(place.with_name("away"))
        answer = client.get("/v1/models?all", headers=bearer(ADMIN))
        assert answer.status_code == 503
        assert "there is no registry" in answer.json()["detail"]
        assert len(client.get("/v1/models", headers=bearer(ADMIN)).json()["served"]) == 1
    with run_server(Access(versions_of(FolderSource(models[0])), nobody, admin, None)) as running:  # type: ignore[arg-type]
        answer = running.client.get("/v1/models?all", headers=bearer(ADMIN))
        assert answer.status_code == 200
        assert "available" not in answer.json()


def test_tokens_and_labels(
    registry: Registry, models: list[Path], tokens: tuple[Path, Path], tmp_path: Path
) -> None:
    log, version = tmp_path / "access.log", registry.publish(models[1])
    words = ("--tokens-file", tokens[0], "--admin-tokens-file", tokens[1], "--access-log", log)
    with (
        server_process("--registry", registry.place, *words) as (_, line),
        httpx.Client(base_url=line.split()[-1], verify=False) as client,
    ):
        for wrong in ({}, bearer("predict-0123456780"), bearer("x"), {"authorization": f"Basic {TOKEN}"}):
            refused = client.post("/v1/predict", json=ROWS, headers=wrong)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert "a valid token is required" in refused.json()["detail"]
        for path in ("/v1/model", "/v1/models", "/openapi.json", "/redoc", "/page/model", "/nothing"):
            assert client.get(path).status_code == 401
        for path in ("/page/%2e%2e/v1/model", "/page/%2e%2e/model.js", "/swagger-ui/a/b.js", "/docs/"):
            assert client.get(path).status_code == 401
        for path in ("/healthz", "/readyz", "/metrics"):
            assert client.get(path).status_code == 200
        assert client.get("/swagger-ui/swagger-ui-bundle.js").status_code == 200
        for path in ("/", "/docs", "/page/script.js", "/page/docs.js", "/page/style.css"):
            shell = client.get(path).raise_for_status().text
            assert load_model(models[0]).id not in shell
            assert "cityxdevice" not in shell
        for right in (TOKEN, OTHER, ADMIN):
            assert client.post("/v1/predict", json=ROWS, headers=bearer(right)).status_code == 200
        assert "inputs" not in client.get("/v1/model", headers=bearer(TOKEN)).json()["training"]
        assert client.get("/v1/model", headers=bearer(ADMIN)).json()["training"]["inputs"]

        assert client.get("/v1/models", headers=bearer(ADMIN)).json()["source"] == registry.place
        assert "source" not in client.get("/v1/models", headers=bearer(TOKEN)).json()
        counted = client.get("/metrics").text.splitlines()
        assert 'ctr_requests_total{path="other",status="401"} 14.0' in counted
        assert 'ctr_requests_total{path="/v1/models",status="200"} 2.0' in counted
        change = {"url": "/v1/models/stable", "json": {"version": version[:8]}}
        assert client.post(**change, headers=bearer(TOKEN)).status_code == 401
        changed = client.post(**change, headers=bearer(ADMIN))
        assert changed.json() == {"label": "stable", "version": version}
        until(lambda: answered(client, **bearer(TOKEN)) == version)
        back = client.post("/v1/models/stable", json={"rollback": True}, headers=bearer(ADMIN))
        assert back.json()["version"] == load_model(models[0]).id
        for body, status, problem in (
            ({"version": "0" * 12}, 409, "there is no such version"),
            ({"version": "../../etc"}, 409, "there is no such version"),
            ({}, 422, "give {"),
            ({"version": version, "rollback": True}, 422, "give {"),
            ({"verzion": version}, 422, "verzion"),
            ([], 422, ""),
        ):
            refused = client.post("/v1/models/stable", json=body, headers=bearer(ADMIN))
            assert refused.status_code == status
            assert problem in refused.json()["detail"]
        wrong_label = client.post("/v1/models/..%2Fx", json={"version": version}, headers=bearer(ADMIN))
        assert wrong_label.status_code == 409
        assert "is not a label" in wrong_label.json()["detail"]
        assert (
            client.post("/v1/models/stable", content=b"x" * 10**6, headers=bearer(ADMIN)).status_code == 422
        )

        tokens[0].write_text(f"{OTHER}\n")  # one goes
        until(lambda: client.post("/v1/predict", json=ROWS, headers=bearer(TOKEN)).status_code == 401)
        tokens[0].unlink()  # a mistake, which changes nothing
        time.sleep(1.1)
        mine = {"x-request-id": "mine-1", "traceparent": "00-4bf92f35-00f067aa-01"}
        answer = client.post("/v1/predict", json=ROWS, headers=bearer(OTHER) | mine)
        assert answer.status_code == 200
        assert answer.headers["x-request-id"] == "mine-1"
        odd = client.post("/v1/predict", json=ROWS, headers=bearer(OTHER) | {"x-request-id": "a" * 200})
        assert odd.headers["x-request-id"] != "a" * 200
    assert stat.S_IMODE(log.stat().st_mode) == 0o640
    (entry,) = (each for each in entries_of(log) if each["id"] == "mine-1")
    assert entry["traceparent"] == mine["traceparent"]
    assert (entry["method"], entry["path"], entry["status"]) == ("POST", "/v1/predict", 200)
    assert entry["model"] == load_model(models[0]).id
    assert entry["bytes"] == len(answer.content)
    assert 0 < entry["ms"] < 10_000
    assert not any(token in log.read_text() for token in (TOKEN, OTHER, ADMIN))


def test_without_tokens_for_administration_nothing_is_changed(registry: Registry, models: list[Path]) -> None:
    version = registry.publish(models[1])
    with server_process("--registry", registry.place) as (_, line):
        url = f"{line.split()[-1]}/v1/models/stable"
        refused = httpx.post(url, json={"version": version}, headers=bearer("x"))
        assert refused.status_code == 401
        assert "--admin-tokens-file" in refused.json()["detail"]
        assert httpx.get(url).status_code == 405


def test_tokens_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tokens"
    for text, problem in (
        ("", "contains no token"),
        ("short\n", "a token of 5 characters can be guessed"),
    ):
        file.write_text(text)
        with pytest.raises(CtrError, match=problem):
            Tokens(file, "NONE")
    with pytest.raises(CtrError, match="tokens cannot be read from it"):
        Tokens(tmp_path / "nowhere", "NONE")
    monkeypatch.setenv("SOME", f"{TOKEN},{OTHER}")
    some = Tokens(None, "SOME")
    assert some.required
    assert some.has(OTHER.encode())
    assert not some.has(None)
    monkeypatch.setenv("SOME", "short")
    with pytest.raises(CtrError, match="the environment: a token of 5"):
        Tokens(None, "SOME")
    assert not Tokens(None, "NONE").required


def test_a_bad_rotation_is_logged_once_and_the_previous_tokens_remain_valid(
    tokens: tuple[Path, Path], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctr.api.operations.access._RELOAD_S", 0)
    file = tokens[0]
    rotated = Tokens(file, "NONE")
    for make_bad in (file.unlink, lambda: file.write_text("short\n")):
        make_bad()
        caplog.clear()
        for _ in range(3):
            assert rotated.has(TOKEN.encode())
        (record,) = caplog.records
        assert str(file) in record.message
        assert "the previous tokens remain valid" in record.message
    file.write_text(f"{OTHER}\n")
    assert rotated.has(OTHER.encode())
    assert not rotated.has(TOKEN.encode())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


def test_tls(model_dir: Path, certificates: Certificates, cli: Cli, tmp_path: Path) -> None:
    cert, key = certificates.server
    with server_process(model_dir, "--tls-cert", cert, "--tls-key", key) as (_, line):
        url = line.split()[-1]
        assert url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=str(certificates.ca))
        with httpx.Client(base_url=url.replace("127.0.0.1", "localhost"), verify=trusting) as client:
            assert client.post("/v1/predict", json=ROWS).status_code == 200
    (tmp_path / "no.pem").write_text("no")
    ended = cli("serve", "--model", model_dir, "--port", 0, "--tls-cert", tmp_path / "no.pem")
    assert ended.code == 1
    assert "certificates and key cannot be read" in ended.err
    ended = cli("serve", "--model", model_dir, "--port", 0, "--tls-cert", cert)
    assert ended.code == 1
    assert "give PEM files, and the key of the first certificate, by --tls-key" in ended.err
    encrypted = tmp_path / "encrypted.pem"
    private = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    encrypted.write_bytes(private.private_bytes(*form, serialization.BestAvailableEncryption(b"secret")))
    ended = cli("serve", "--model", model_dir, "--port", 0, "--tls-cert", cert, "--tls-key", encrypted)
    assert ended.code == 1
    assert f"{encrypted}: the private key is encrypted; give one without a passphrase" in ended.err
    ended = cli("serve", "--model", model_dir, "--port", 0, "--tls-key", key)
    assert "--tls-key belongs to a certificate: give --tls-cert" in ended.err


def test_new_connections_get_a_renewed_certificate(model_dir: Path, tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    old, new = Certificates(tmp_path / "old"), Certificates(tmp_path / "new")
    files = tmp_path / "server.pem", tmp_path / "server.key"

    def use(certificates: Certificates) -> None:
        for file, source in zip(files, certificates.server, strict=True):
            file.write_bytes(Path(source).read_bytes())

    use(old)
    with server_process(model_dir, "--tls-cert", files[0], "--tls-key", files[1]) as (process, line):
        url = line.split()[-1].replace("127.0.0.1", "localhost")

        def accepts(certificates: Certificates) -> bool:
            try:
                httpx.get(f"{url}/readyz", verify=ssl.create_default_context(cafile=str(certificates.ca)))
            except httpx.ConnectError:
                return False
            return True

        assert accepts(old)
        files[0].write_text("no")
        process.popen.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert accepts(old)
        use(new)
        process.popen.send_signal(signal.SIGHUP)
        until(lambda: accepts(new))
        assert not accepts(old)


def test_an_access_log_that_is_moved_is_opened_again(model: Model, tmp_path: Path) -> None:
    path, nobody = tmp_path / "access.log", Tokens(None, "NONE")
    with run_server(Access(create_app(model), nobody, nobody, path)) as running:  # type: ignore[arg-type]
        running.client.get("/healthz")
        path.rename(tmp_path / "access.log.1")
        until(lambda: running.client.get("/healthz").is_success and path.exists())
        assert "/healthz" in (tmp_path / "access.log.1").read_text()
        assert "/healthz" in path.read_text()
        path.unlink()
        until(lambda: running.client.get("/healthz").is_success and path.exists())


@pytest.mark.parametrize("connections", [connection_class(), H11Connection])
def test_what_a_connection_refuses_is_counted_and_logged(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connections: type
) -> None:
    monkeypatch.setattr("ctr.api.server.connection_class", lambda: connections)
    slow, nobody, path = Wrapped(model), Tokens(None, "NONE"), tmp_path / "access.log"
    slow.gate.set()
    metrics = ServingMetrics(model.id)
    app = Access(create_app(slow, metrics=metrics), nobody, nobody, path, metrics)  # type: ignore[arg-type]
    bad_chunk = b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nno size\r\n"
    with ThreadPoolExecutor(1) as pool, run_server(app, limit=2) as running:  # type: ignore[arg-type]
        assert running.client.get("/healthz", headers={"x-long": "x" * (60 << 10)}).is_success
        refusals = {400: answer(connect(running.url, b"no HTTP\r\n\r\n"))}
        large = connect(running.url, HALF_A_HEADER)
        until(lambda: any(each._has_part for each in running.server.server_state.connections))  # type: ignore[union-attr]
        large.sendall(b"x" * ((64 << 10) - len(HALF_A_HEADER)))
        large.sendall(b"x" * (len(HALF_A_HEADER) + 1))  # the last bytes cause it: unread ones would reset it
        refusals[431] = answer(large)
        assert answer(connect(running.url, bad_chunk)).startswith(b"HTTP/1.1 400 ")
        slow.gate.clear()
        slow.entered.clear()
        under_way = pool.submit(running.client.post, "/v1/predict?include=margins", content=LARGE)
        assert slow.entered.wait(10)
        half = connect(running.url, b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n")
        until(lambda: len(running.server.server_state.tasks) == 2)
        refusals[503] = answer(connect(running.url))
        slow.gate.set()
        half.close()
        assert under_way.result().status_code == 200
        until(lambda: len(entries_of(path)) >= 6)
        counted = running.client.get("/metrics").text.splitlines()
    assert 'ctr_requests_total{path="/v1/predict",status="400"} 2.0' in counted, "the application knew them"
    entries = {entry["id"]: entry for entry in entries_of(path) if entry["path"] is None}
    assert len(entries) == 3
    for status, said in refusals.items():
        assert f'ctr_requests_total{{path="connection",status="{status}"}} 1.0' in counted
        head, _, body = said.partition(b"\r\n\r\n")
        assert json.loads(body)["detail"]
        entry = entries[head.partition(b"x-request-id: ")[2].split()[0].decode()]
        assert head.startswith(f"HTTP/1.1 {entry['status']} ".encode())
        assert (entry["status"], entry["bytes"], entry["client"]) == (status, len(body), "127.0.0.1")


def entries_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in log.read_text().splitlines()]


def test_requests_through_a_unix_socket_are_drawn_for_the_canary(
    registry: Registry, models: list[Path], tmp_path: Path
) -> None:
    registry.publish(models[1], ["canary"])
    path = tmp_path / "ctr.sock"
    with (
        server_process("--registry", registry.place, "--canary", "50%", "--socket", path),
        httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path), verify=False), base_url="http://ctr"
        ) as client,
    ):
        versions = [answered(client) for _ in range(40)]
        assert 5 < versions.count(load_model(models[1]).id) < 35


def test_a_unix_socket(model_dir: Path, cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "ctr.sock"
    for _ in range(2):  # the second finds what a killed one has left
        with server_process(model_dir, "--socket", path) as (process, line):
            assert line.endswith(f" on unix:{path}\n")
            assert stat.S_IMODE(path.stat().st_mode) == 0o666, "a proxy may run as another user"
            with httpx.Client(
                transport=httpx.HTTPTransport(uds=str(path), verify=False), base_url="http://ctr"
            ) as client:
                assert client.post("/v1/predict", json=ROWS).status_code == 200
            ended = cli("serve", "--model", model_dir, "--socket", path)
            assert "another server listens there" in ended.err
            process.popen.kill()
            process.popen.wait()
        assert path.is_socket()
