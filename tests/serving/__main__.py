"""Put a server under load while versions change and things break: `make serve-drill`.

Prints what was asked and what was measured; the exit code is 1 when a request failed that should not have.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

import httpx
import numpy as np

from ctr.features import load_spec
from ctr.model import LinearModel, Model
from ctr.registry import Registry
from tests.serving.load import Load, message

CTR = Path(sys.executable).with_name("ctr")
ADMIN = "administrator-of-the-drill"
QUIET_S, CHANGES_S, EVERY_S = 20.0, 60.0, 5.0
CONNECTIONS = 8
BITS, WEIGHTS = 24, 8_000_000
"""64 MB of slots and weights."""
MB = 1e6


@dataclass
class Table:
    """What was asked and what was measured."""

    failed: bool = False

    def add(self, what: str, asked: str, measured: str, *, holds: bool = True) -> None:
        """Print a row."""
        self.failed |= not holds
        print(f"  {what:58}{asked:>22}{measured:>26}{'' if holds else '   MISSED'}", flush=True)


class Server:
    """`ctr serve` as a process."""

    def __init__(self, *words: object) -> None:
        began = perf_counter()
        environment = os.environ | {"CTR_SERVE_ADMIN_TOKENS": ADMIN}
        self.process = subprocess.Popen(
            [str(CTR), "serve", *map(str, words), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.ready_s = perf_counter() - began
        if not line:
            sys.exit(f"the server did not start: {self.process.communicate()[1]}")
        self.url = line.split()[-1]
        self.port = int(self.url.rpartition(":")[2])
        self.client = httpx.Client(
            base_url=self.url, headers={"authorization": f"Bearer {ADMIN}"}, timeout=30
        )

    def get(self, path: str) -> Any:
        return self.client.get(path).json()

    def metric(self, name: str) -> float:
        """The sum of a metric's series."""
        found = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", self.client.get("/metrics").text, re.MULTILINE)
        return sum(map(float, found))

    @property
    def children(self) -> list[int]:
        """Pids of the processes that answer."""
        pid = self.process.pid
        named = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(each) for each in named] or [pid]

    def models_mapped(self) -> int:
        """Of the process that has most models in its memory, how many."""
        maps = [Path(f"/proc/{pid}/maps").read_text() for pid in self.children]
        return max(len(set(re.findall(r"\S+/weights\.\S+", text))) for text in maps)

    def memory(self) -> float:
        """Bytes of all its processes; what they share counts once."""
        total = 0
        for pid in {self.process.pid, *self.children}:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            size = re.search(r"^Pss: +(\d+)", text, re.MULTILINE)
            assert size is not None
            total += 1024 * int(size[1])
        return total

    def end(self) -> str:
        """Stop it; what it said on standard error."""
        self.process.send_signal(signal.SIGTERM)
        said = self.process.communicate(timeout=60)[1]
        self.client.close()
        return said


@asynccontextmanager
async def loaded(port: int, messages: Sequence[bytes], every_s: float = 0.0) -> AsyncIterator[Load]:
    """Load for as long as the block lasts."""
    load = Load(port, messages, CONNECTIONS, every_s)
    task = asyncio.create_task(load.run())
    try:
        yield load
    finally:
        load.stopped = True
        await task


async def until(holds: Callable[[], bool], seconds: float = 20.0) -> float:
    """Wait for it, in a thread of its own; how long it took, or infinity."""
    began = monotonic()
    while monotonic() < began + seconds:
        if await asyncio.to_thread(holds):
            return monotonic() - began
        await asyncio.sleep(0.02)
    return float("inf")


def replace_file(path: Path, content: bytes) -> None:
    """By another file: a process that has mapped this one would die when it is cut."""
    draft = path.with_name("draft")
    draft.write_bytes(content)
    draft.replace(path)


def p99(latencies: Sequence[float]) -> float:
    return float(np.quantile(latencies, 0.99))


def failures(load: Load) -> int:
    return sum(count for status, count in load.answers.items() if status != "200")


def rows_of(number: int) -> list[dict[str, object]]:
    draw = random.Random(5)
    return [
        {f"I{i}": draw.randint(0, 3_000) for i in range(1, 14)}
        | {f"C{i}": f"{draw.getrandbits(32):08x}" for i in range(1, 27)}
        for _ in range(number)
    ]


def save_models(folder: Path) -> list[Path]:
    """Three of the same size and transform."""
    spec = load_spec("criteo").model_copy(update={"bits": BITS})
    paths = []
    for number in range(3):
        draw = np.random.default_rng(number)
        slots = np.sort(draw.choice(1 << BITS, WEIGHTS, replace=False)).astype(np.uint32)
        weights = draw.normal(0, 0.1, WEIGHTS).astype(np.float32)
        state = (slots[:10], np.ones((10, 2), np.float32))
        facts = {
            "optimizer": {"name": "ftrl", "alpha": 0.1, "beta": 1.0, "l1": 0.0, "l2": 0.0, "passes": 1.0}
        }
        model = Model.of(spec, LinearModel.of_weights(slots, weights), facts, state=state)
        paths.append(folder / f"model-{number}")
        model.save(paths[-1])
    return paths


def start_and_memory(models: Sequence[Path], table: Table) -> None:
    """A model of 64 MB: how long a start takes, and how much memory each process."""
    Server("--model", models[0]).end()  # compiles what was not
    starts, memories = [], []
    for workers in (1, 2, 3):
        server = Server("--model", models[0], "--workers", workers)
        starts.append(server.ready_s)
        for message_ in (rows_of(1), rows_of(100)):
            server.client.post("/v1/predict", json={"rows": message_}).raise_for_status()
        memories.append(server.memory())
        server.end()
    size = sum(path.stat().st_size for path in models[0].glob("weights.*"))
    table.add("start to ready, 64 MB, warm kernels", "2 s", f"{starts[0]:.2f} s", holds=starts[0] <= 2)
    first, more = (memories[0] - size) / MB, (memories[2] - memories[0]) / 2 / MB
    table.add("memory beside the model", "250 MB", f"{first:.0f} MB", holds=first <= 250)
    table.add("memory of each further process", "80 MB", f"{more:.0f} MB", holds=more <= 80)


async def changes(models: Sequence[Path], folder: Path, table: Table) -> None:
    """A promotion every few seconds, and what else happens to a registry."""
    registry = Registry(folder / "registry")
    ids = [registry.publish(path) for path in models]
    registry.label("stable", ids[0])
    server = Server("--registry", folder / "registry", "--workers", 2)
    bodies = [message("/v1/predict", json.dumps({"rows": [row]}).encode()) for row in rows_of(50)]

    async def promote(version: str) -> int:
        answer = await asyncio.to_thread(server.client.post, "/v1/models/stable", json={"version": version})
        return answer.status_code

    def serve_all(version: str) -> Callable[[], bool]:
        """Whether several answers in a row come from it, whichever process they come from."""

        def holds() -> bool:
            for _ in range(6):
                with httpx.Client(base_url=server.url) as other:
                    if other.get("/readyz").json()["model"] != version:
                        return False
            return True

        return holds

    async with loaded(server.port, bodies) as warm_up:
        await asyncio.sleep(2)
    assert failures(warm_up) == 0, warm_up.answers
    async with loaded(server.port, bodies) as quiet:
        await asyncio.sleep(QUIET_S)
    async with loaded(server.port, bodies) as changing:
        end, turn, slowest = monotonic() + CHANGES_S, 0, 0.0
        while monotonic() < end:
            turn += 1
            began = monotonic()
            assert await promote(ids[turn % 3]) == 200
            slowest = max(slowest, await until(serve_all(ids[turn % 3])))
            await asyncio.sleep(max(0.0, began + EVERY_S - monotonic()))
    failed, ratio = failures(changing), p99(changing.latencies) / p99(quiet.latencies)
    table.add(
        f"{turn} promotions in {CHANGES_S:.0f} s under full load: errors", "0", str(failed), holds=not failed
    )
    words = f"{ratio:.2f} ({1e3 * p99(quiet.latencies):.1f} ms)"
    table.add("p99 of that, of the quiet one", "1.5", words, holds=ratio <= 1.5)
    await asyncio.sleep(1)
    assert await promote(ids[(turn + 1) % 3]) == 200
    alone = await until(serve_all(ids[(turn + 1) % 3]))
    words = f"{alone:.2f} s ({slowest:.2f} under load)"
    table.add("promotion to served by all processes", "2 s", words, holds=alone <= 2)

    await asyncio.sleep(1)
    models_mapped = server.models_mapped()
    # The first one stays in the memory of the parent, which the processes have from it.
    table.add("models in memory after them", "2", str(models_mapped), holds=models_mapped <= 2)

    stable = server.get("/v1/models")["served"][0]["version"]
    async with loaded(server.port, bodies) as load:
        answers = await asyncio.gather(promote(ids[0]), promote(ids[1]))
        await until(lambda: server.get("/readyz")["model"] == registry.version_of("stable"))
        place = Path(registry.place)
        unread = server.metric("ctr_unread_labels_total")
        place.rename(place.with_name("away"))
        await asyncio.sleep(3)
        noticed = server.metric("ctr_unread_labels_total") > unread
        place.with_name("away").rename(place)
        torn = Path(registry.place, "versions", ids[2], "weights.safetensors")
        sound = torn.read_bytes()
        replace_file(torn, sound[:-1])
        await promote(ids[2])
        named = await until(lambda: ids[2] in server.get("/v1/models")["failed"]) < 20
        kept = server.get("/readyz")["model"] != ids[2]
        replace_file(torn, sound)
        labels = Path(registry.place, "labels.json")
        before = labels.read_text()
        labels.write_text(before.replace(registry.version_of("stable"), "0123456789ab"))
        await until(lambda: "0123456789ab" in server.get("/v1/models")["failed"])
        stays = server.get("/readyz")["model"] in ids
        labels.write_text(before)
    assert stable in ids
    table.add("two promotions at once", "both accepted", str(answers), holds=answers == [200, 200])
    table.add("registry away for 3 s", "noticed", "noticed" if noticed else "no", holds=noticed)
    table.add("a torn version", "not served", "not served" if named and kept else "no", holds=named and kept)
    table.add("a label to no version", "what was served stays", "stays" if stays else "no", holds=stays)
    table.add("errors meanwhile", "0", str(dict(load.answers)), holds=not failures(load))

    async with loaded(server.port, bodies) as load:
        await asyncio.sleep(1)
        victim = server.children[0]
        os.kill(victim, signal.SIGKILL)
        await until(lambda: len(server.children) == 2 and victim not in server.children)
        await asyncio.sleep(2)
    lost = failures(load)
    table.add(
        "a process killed: requests lost",
        f"{CONNECTIONS} at most",
        str(dict(load.answers)),
        holds=lost <= CONNECTIONS,
    )
    async with loaded(server.port, bodies) as load:
        await asyncio.sleep(2)
        ending = asyncio.create_task(asyncio.to_thread(server.end))
        while not ending.done():
            await asyncio.sleep(0.01)
            if load.answers["refused"]:
                load.stopped = True
        said = await ending
    lost = failures(load) - load.answers["refused"]
    table.add("stopped under load: accepted requests that failed", "0", str(lost), holds=not lost)
    noted = all(words in said for words in ("is not served", "stay"))
    table.add("what went wrong is in the log", "yes", "yes" if noted else "no", holds=noted)


def bad_requests(port: int) -> list[bytes]:
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
    messages = bad_requests(server.port)

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


def main() -> int:
    """The exit code: 1 when something was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.serving", description=__doc__)
    parser.add_argument("--bad", type=int, default=1_000_000, help="so many bad requests")
    asked = parser.parse_args()
    table = Table()
    print(f"  {'':58}{'asked':>22}{'measured':>26}")
    with tempfile.TemporaryDirectory(prefix="ctr-serving-") as place:
        folder = Path(place)
        models = save_models(folder)
        start_and_memory(models, table)
        asyncio.run(changes(models, folder, table))
        asyncio.run(refusals(models[0], asked.bad, table))
        sleep(0.1)
    return int(table.failed)


if __name__ == "__main__":
    sys.exit(main())
