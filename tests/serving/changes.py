"""A server of two processes under full load, whose registry changes, is torn and goes away."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import httpx

from ctr.registry import Registry
from tests.serving.load import CONNECTIONS, Load, loaded, message
from tests.serving.models import rows_of
from tests.serving.server import Server, until
from tests.serving.table import Table

PACED_S = 0.01
"""Between two requests of a connection: 800 requests/s, as full load slows a change of versions, too."""
QUIET_S, CHANGES_S, EVERY_S = 20.0, 60.0, 5.0
_NO_VERSION = "0123456789ab"


@dataclass(frozen=True)
class Drill:
    """The server, its registry with a few versions, and where results go."""

    server: Server
    registry: Registry
    ids: Sequence[str]
    table: Table
    bodies: Sequence[bytes]

    def load(self, every_s: float = 0.0) -> AbstractAsyncContextManager[Load]:
        """Requests of one row for as long as the block lasts; `every_s`: see `Load`."""
        return loaded(self.server.port, self.bodies, every_s)

    async def promote(self, version: str) -> int:
        """Have `stable` point to a version, by a request; the status of its answer."""
        post = self.server.client.post
        answer = await asyncio.to_thread(post, "/v1/models/stable", json={"version": version})
        return answer.status_code

    def serve_all(self, version: str) -> Callable[[], bool]:
        """Whether several answers in a row come from it, whichever process they come from."""

        def holds() -> bool:
            for _ in range(6):
                with httpx.Client(
                    base_url=self.server.url, verify=False
                ) as other:  # which loads no certificates
                    if other.get("/readyz").json()["model"] != version:
                        return False
            return True

        return holds

    def served(self) -> str:
        """The version that is served."""
        return str(self.server.get("/readyz")["model"])

    def failed(self) -> list[str]:
        """The versions that were tried and are not served."""
        return list(self.server.get("/v1/models")["failed"])


async def changes(models: Sequence[Path], folder: Path, away_s: float, table: Table) -> None:
    """All that may happen to a registry and to processes; `away_s`: how long the registry is away."""
    registry = Registry(folder / "registry")
    ids = [registry.publish(path) for path in models]
    registry.label("stable", ids[0])
    server = Server("--registry", folder / "registry", "--workers", 2)
    bodies = [message("/v1/predict", json.dumps({"rows": [row]}).encode()) for row in rows_of(50)]
    drill = Drill(server, registry, ids, table, bodies)
    await promotions(drill)
    await mistakes(drill)
    await registry_away(drill, away_s)
    await process_killed(drill)
    await stopped(drill)


async def promotions(drill: Drill) -> None:
    """One every few seconds, beside the same load without any; then one without load."""
    ids, table = drill.ids, drill.table
    async with drill.load() as warm_up:
        await asyncio.sleep(2)
    assert warm_up.failures == 0, warm_up.answers
    async with drill.load() as quiet:
        await asyncio.sleep(QUIET_S)
    async with drill.load() as changing:
        end, turn, slowest, overlap = monotonic() + CHANGES_S, 0, 0.0, 0.0
        while monotonic() < end:
            turn += 1
            began = monotonic()
            changing.answered.clear()
            assert await drill.promote(ids[turn % 3]) == 200
            slowest = max(slowest, await until(drill.serve_all(ids[turn % 3])))
            await asyncio.sleep(max(0.0, began + EVERY_S - monotonic()))
            first, last = changing.answered[ids[turn % 3]][0], changing.answered[ids[(turn - 1) % 3]][1]
            overlap = max(overlap, last - first)
    failures, ratio = changing.failures, changing.p99 / quiet.p99
    what = f"{turn} promotions in {CHANGES_S:.0f} s under full load: errors"
    table.add(what, "0", str(failures), holds=not failures)
    words = f"{ratio:.2f} ({1e3 * quiet.p99:.1f} ms)"
    table.add("p99 of that, of the quiet one", "1.5", words, holds=ratio <= 1.5)
    what = "first answer of a version to the last one of that before"
    table.add(what, "1 s", f"{overlap:.2f} s at most", holds=overlap <= 1)
    await asyncio.sleep(1)
    assert await drill.promote(ids[(turn + 1) % 3]) == 200
    alone = await until(drill.serve_all(ids[(turn + 1) % 3]))
    words = f"{alone:.2f} s ({slowest:.2f} under load)"
    table.add("promotion to served by all processes", "2 s", words, holds=alone <= 2)
    await asyncio.sleep(1)
    models_mapped = drill.server.models_mapped()
    # The first one stays in the memory of the parent, which the processes have from it.
    table.add("models in memory after them", "2", str(models_mapped), holds=models_mapped <= 2)


async def mistakes(drill: Drill) -> None:
    """Two promotions at once, a torn version, and a label that points to no version."""
    table = drill.table
    async with drill.load() as load:
        answers = await asyncio.gather(drill.promote(drill.ids[0]), drill.promote(drill.ids[1]))
        await until(lambda: drill.served() == drill.registry.version_of("stable"))
        is_refused = await torn_version(drill, drill.ids[2])
        stays = await label_to_nothing(drill)
    table.add("two promotions at once", "both accepted", str(answers), holds=answers == [200, 200])
    table.add("a torn version", "not served", "not served" if is_refused else "no", holds=is_refused)
    table.add("a label to no version", "what was served stays", "stays" if stays else "no", holds=stays)
    table.add("errors meanwhile", "0", str(dict(load.answers)), holds=not load.failures)


async def torn_version(drill: Drill, version: str) -> bool:
    """Promote a version whose weights are cut; whether it is named as failed, and not served."""
    torn = Path(drill.registry.place, "versions", version, "weights.safetensors")
    sound = torn.read_bytes()
    replace_file(torn, sound[:-1])
    await drill.promote(version)
    is_named = await until(lambda: version in drill.failed()) < float("inf")
    is_served = drill.served() == version
    replace_file(torn, sound)
    return is_named and not is_served


async def label_to_nothing(drill: Drill) -> bool:
    """Have the label point to a version that is not there; whether another is still served."""
    labels = Path(drill.registry.place, "labels.json")
    before = labels.read_text()
    labels.write_text(before.replace(drill.registry.version_of("stable"), _NO_VERSION))
    is_named = await until(lambda: _NO_VERSION in drill.failed()) < float("inf")
    stays = drill.served() in drill.ids
    labels.write_text(before)
    return is_named and stays


def replace_file(path: Path, content: bytes) -> None:
    """By another file: a process that has mapped this one would die when it is cut."""
    draft = path.with_name("draft")
    draft.write_bytes(content)
    draft.replace(path)


async def registry_away(drill: Drill, seconds: float) -> None:
    """Its folder is away and comes back with another version under the label."""
    table, place = drill.table, Path(drill.registry.place)
    stable, other, *_ = drill.ids
    assert await drill.promote(stable) == 200
    await until(drill.serve_all(stable))
    unread = drill.server.metric("ctr_unread_labels_total")
    async with drill.load(PACED_S) as load:
        away = place.rename(place.with_name("away"))
        await asyncio.sleep(seconds)
        is_noticed = drill.server.metric("ctr_unread_labels_total") > unread
        stays = drill.serve_all(stable)()
        Registry(away).label("stable", other)
        away.rename(place)
        back_s = await until(drill.serve_all(other))
    noticed = "noticed" if is_noticed and stays else "no"
    table.add(f"registry away for {seconds:.0f} s", "noticed, served", noticed, holds=is_noticed and stays)
    table.add("errors meanwhile", "0", str(dict(load.answers)), holds=not load.failures)
    slowest_s = max(load.latencies)
    table.add("slowest answer meanwhile", "1 s", f"{slowest_s:.2f} s", holds=slowest_s <= 1)
    table.add("its return to the new version served by all", "2 s", f"{back_s:.2f} s", holds=back_s <= 2)


async def process_killed(drill: Drill) -> None:
    """One of the two, by signal 9."""
    server = drill.server
    async with drill.load() as load:
        await asyncio.sleep(1)
        victim = server.children[0]
        os.kill(victim, signal.SIGKILL)
        await until(lambda: len(server.children) == 2 and victim not in server.children)
        await asyncio.sleep(2)
    most, answers = f"{CONNECTIONS} at most", str(dict(load.answers))
    drill.table.add("a process killed: requests lost", most, answers, holds=load.failures <= CONNECTIONS)


async def stopped(drill: Drill) -> None:
    """The end, while requests are under way, and what the log said by then."""
    async with drill.load() as load:
        await asyncio.sleep(2)
        ending = asyncio.create_task(asyncio.to_thread(drill.server.end))
        while not ending.done():
            await asyncio.sleep(0.01)
            if load.answers["refused"]:
                load.stopped = True
        log = await ending
    lost = load.failures - load.answers["refused"]
    answers = str(dict(load.answers))
    drill.table.add("stopped under load: accepted requests that failed", "0", answers, holds=not lost)
    noted = all(words in log for words in ("is not served", "stay"))
    drill.table.add("what went wrong is in the log", "yes", "yes" if noted else "no", holds=noted)
