"""A server that speaks S3, on this machine, in a process of its own: so that none of its threads stay."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.request import Request, urlopen

from pyarrow.fs import S3FileSystem

SERVE = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(*server.get_host_and_port(), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class S3Server:
    url: str

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "reader",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def put(self, path: str, data: bytes | None = None) -> None:
        """A bucket, or an object in it."""
        if data is None:
            self._files().create_dir(path)
            return
        with self._files().open_output_stream(path, compression=None) as file:
            file.write(data)

    def delete(self, path: str) -> None:
        """An object."""
        self._files().delete_file(path)

    def refuse(self, refused: bool) -> None:
        """Whether requests need keys that it knows, of which there are none."""
        url, headers = f"{self.url}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        with urlopen(Request(url, b"0" if refused else b"inf", headers)) as answer:
            answer.read()

    def _files(self) -> S3FileSystem:
        return S3FileSystem(
            endpoint_override=self.url,
            region="us-east-1",
            access_key="writer",
            secret_key="secret",
            allow_bucket_creation=True,
        )


@contextmanager
def start_s3() -> Iterator[S3Server]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"INITIAL_NO_AUTH_ACTION_COUNT": "inf"},
    ) as process:
        assert process.stdout is not None
        host, port = process.stdout.readline().split()
        try:
            yield S3Server(f"http://{host.decode()}:{port.decode()}")
        finally:
            process.kill()
