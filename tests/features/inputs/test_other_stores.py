"""What is told of Google Cloud Storage and HDFS where they cannot be read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import pytest

from ctr.errors import DataError
from ctr.features.inputs import input_files, remote
from ctr.features.inputs.remote import _gcs

ANSWER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(sys.argv[1]))
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def answering(status: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Google's client speaks to a server that answers everything with this status."""
    with subprocess.Popen(
        [sys.executable, "-c", ANSWER, str(status)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        monkeypatch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", f"http://127.0.0.1:{port}")
        _gcs.cache_clear()
        try:
            yield
        finally:
            _gcs.cache_clear()
            process.kill()


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "no permission to read it .*GOOGLE_APPLICATION_CREDENTIALS with the path of a key file"),
        (403, "no permission to read it .*public data is read as gs://anonymous@bucket/key"),
        (404, r"logs/a\.csv: there is no such file or folder; check bucket and path"),
        (503, "the server cannot be reached .*check the network"),
    ],
)
def test_google_cloud_storage(monkeypatch: pytest.MonkeyPatch, status: int, message: str) -> None:
    monkeypatch.setattr(remote, "_GCS_FIRST_S", 1)
    began = monotonic()
    with answering(status, monkeypatch), pytest.raises(DataError, match=message) as raised:
        input_files(["gs://anonymous@logs/a.csv"])
    assert monotonic() - began < 60  # pyarrow alone would try for 15 minutes
    assert "AWS" not in str(raised.value)


@pytest.mark.parametrize("uri", ["gs://anonymous@logs/day=*/*.csv", "gcs://anonymous@logs"])
def test_folders_and_patterns(monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
    with answering(404, monkeypatch), pytest.raises(DataError, match="there is no such file or folder"):
        input_files([uri])


def test_hdfs_without_its_client() -> None:
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "from ctr.features.inputs import input_files; input_files(['hdfs://h:1/a.csv'])",
        ],
        env={"JAVA_HOME": "/nowhere", "HADOOP_HOME": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "DataError: hdfs://h:1/a.csv: no file system can be opened for it" in found.stderr
    assert "Java (JAVA_HOME), libhdfs.so (HADOOP_HOME" in found.stderr
