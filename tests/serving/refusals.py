"""Very many bad requests, and what they leave behind."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path

from tests.serving.load import Load, loaded, message
from tests.serving.models import rows_of
from tests.serving.server import Server
from tests.serving.table import Table

MB = 1e6


def bad_requests() -> list[bytes]:
    """Of every kind that is refused."""
    rows = rows_of(1)
    deep = b'{"rows": ' + 2_000 * b"[" + 2_000 * b"]" + b"}"
    bodies = [
        b"{",
        b"",
        b"[1, 2]",
        b'{"rows": 3}',
        b'{"rows": [{"I1": NaN}]}',
        b'{"rows": [{"I1": "many"}]}',
        b'{"rows": [{"I1": {"a": 1}}]}',
        b'{"rows": [{"no such field": 1}]}',
        b'{"rows": [{"C1": "\xff\xfe"}]}',
        json.dumps({"rows": rows, "more": 1}).encode(),
        json.dumps({"columns": {"I1": [1, 2], "I2": [1]}}).encode(),
        json.dumps({"context": [], "candidates": rows}).encode(),
        deep,
    ]
    messages = [message("/v1/predict", body) for body in bodies]
    messages.append(message("/v1/predict", json.dumps({"rows": rows}).encode(), kind="text/csv"))
    messages.append(message("/v1/predict", b"no gzip", content_encoding="gzip"))
    messages.append(message("/v1/predict", gzip.compress(deep)[:-9], content_encoding="gzip"))
    messages.append(message("/v1/predict/arrow", b"no arrow", kind="application/vnd.apache.arrow.stream"))
    messages.append(message("/v1/predict?include=all", json.dumps({"rows": rows}).encode()))
    messages.append(message("/v1/explain", b'{"rows": [[]]}'))
    messages.append(message("/v2/models/ctr/infer", b'{"inputs": 1}'))
    return messages


async def refusals(model: Path, number: int, table: Table) -> None:
    """Very many bad requests, and the memory after them."""
    server = Server("--model", model)
    messages = bad_requests()

    async def send(count: int) -> Load:
        async with loaded(server.port, messages) as load:
            while len(load.latencies) < count:
                await asyncio.sleep(0.1)
        return load

    await send(min(20_000, number))
    before = server.memory()
    load = await send(number)
    after = server.memory()
    others = {status for status in load.answers if not status.startswith("4")}
    table.add(
        f"{len(load.latencies):,} bad requests: answers", "4xx", ", ".join(load.answers), holds=not others
    )
    grown = (after - before) / MB
    table.add("memory after them", "as before", f"{grown:+.1f} MB", holds=grown < 10)
    server.end()
