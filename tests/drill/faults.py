"""The faults: what is done to the servers and processes of a running job, with signals and Redis commands."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic, sleep

from ctr.errors import CtrError
from ctr.learn import read_out
from ctr.ps import RedisStore, parse_redis_url
from tests.drill.frozen_replica import take_snapshot
from tests.drill.scene import PATIENCE_S, POLL_S, MissedError, Scene
from tests.ps.breakable_redis import BreakableServer
from tests.ps.cluster import Node, has_hash_slot, hash_slot_of, move_hash_slots

Fault = Callable[[Scene, random.Random], None]
"""Strikes once; returns when what it did to servers and processes is over, whatever became of the job."""

_FAILOVER_S = (4.0, 7.0)  # longer than two node timeouts
_SHORT_S = (0.3, 1.5)
_STEPS_S = (-3600.0, -600.0, 600.0, 3600.0)  # longer than a round may last


def kill_primary(scene: Scene, chosen: random.Random) -> None:
    node = scene.take_node(chosen)
    _fail_over(scene, node)


def kill_lagging_primary(scene: Scene, chosen: random.Random) -> None:
    node, cluster = scene.take_node(chosen), scene.cluster()
    scene.note(f"cut off the replica of {scene.name(node.primary)}")
    with cluster.cut_off(node.replicas):
        scene.over.wait(chosen.uniform(0.5, 3.0))
        _kill(scene, node.primary)
    _fail_over(scene, node)


def freeze_primary(scene: Scene, chosen: random.Random) -> None:
    """In a cluster, its replica takes over."""
    if len(scene.servers.nodes) == 1:
        _freeze(scene, [scene.take_server(scene.servers.servers[:1], chosen)], chosen.uniform(*_FAILOVER_S))
        return
    node = scene.take_node(chosen)
    _freeze(scene, [node.primary], chosen.uniform(*_FAILOVER_S))
    scene.until(scene.cluster().is_whole, "the cluster did not become whole again")


def freeze_primary_and_replica(scene: Scene, chosen: random.Random) -> None:
    node = scene.take_node(chosen)
    _freeze(scene, [node.primary, *node.replicas], chosen.uniform(*_FAILOVER_S))
    scene.until(scene.cluster().is_whole, "the cluster did not become whole again")


def freeze_replica(scene: Scene, chosen: random.Random) -> None:
    if len(scene.servers.nodes) == 1:
        replicas: Sequence[BreakableServer] = scene.servers.nodes[0][1:]
    else:
        replicas = scene.take_node(chosen).replicas
    _freeze(scene, replicas, chosen.uniform(*_FAILOVER_S))


def reshard(scene: Scene, chosen: random.Random) -> None:
    """Move half of a primary's partitions to another."""
    source, target = scene.take_nodes(2, chosen)
    moving = sorted(chosen.sample(source.partitions, max(len(source.partitions) // 2, 1)))
    scene.strike(f"moving {len(moving)} partitions to {scene.name(target.primary)}")
    for number in sorted({hash_slot_of(scene.keys, partition) for partition in moving}):
        scene.until(lambda n=number: _moved(scene, source, target, n), "a hash slot could not be moved")
    scene.note("moved them")


def reshard_to_new_node(scene: Scene, chosen: random.Random) -> None:
    """Move half of a primary's partitions to one that has just joined."""
    source = scene.take_node(chosen)
    cluster = scene.cluster()
    target = cluster.add_node()
    moving = sorted(chosen.sample(source.partitions, max(len(source.partitions) // 2, 1)))
    scene.strike(f"moving {len(moving)} partitions to {scene.name(target)}, which is new")
    cluster.move(moving, source.primary, target)
    scene.until(cluster.is_whole, "the cluster did not become whole again")
    scene.note("moved them")


def fill_memory(scene: Scene, chosen: random.Random) -> None:
    """Of a primary, once there is a checkpoint; the job stops, and there is memory again."""
    scene.until_job(scene.checkpoint.exists)
    node, cluster = scene.take_node(chosen), scene.cluster()
    scene.strike(f"filling the memory of {scene.name(node.primary)}")
    cluster.limit(node, more=8 << 20)
    try:
        deadline = monotonic() + PATIENCE_S
        while not scene.over.wait(POLL_S):
            cluster.fill(node)  # again, as it gives back a little when clients come and go
            assert monotonic() < deadline, "the job did not notice that memory was full"
    finally:
        cluster.limit(node, None)


def restart_primary(scene: Scene, chosen: random.Random) -> None:
    """It has everything on its disk."""
    server = scene.take_server(scene.servers.servers, chosen)
    _kill(scene, server)
    _restart(scene, server, chosen.uniform(0.0, 3.0))


def restart_from_snapshot(scene: Scene, chosen: random.Random) -> None:
    server = scene.take_server([shard[0] for shard in scene.servers.nodes], chosen)
    _save(scene, server)
    scene.pause(chosen.uniform(*_SHORT_S))
    _kill(scene, server)
    _restart(scene, server, chosen.uniform(0.0, 4.0))


def restart_during_wait(scene: Scene, chosen: random.Random) -> None:
    """Workers wait in vain for a frozen replica while its primary dies, and comes back as it was before."""
    primary, replica = scene.servers.nodes[0]
    scene.take_server([primary], chosen)
    saves_late = chosen.random() < 0.5
    if not saves_late:  # what was replicated since, nobody keeps
        _save(scene, primary)
        scene.pause(chosen.uniform(0.0, 3.0))
    with scene.cluster().frozen([replica]):
        scene.note(f"froze {scene.name(replica)}")
        try:
            scene.pause(chosen.uniform(*_SHORT_S))
            if saves_late:
                _save(scene, primary)
                scene.pause(chosen.uniform(*_SHORT_S))
            _kill(scene, primary)
        finally:
            if not primary.alive:
                _restart(scene, primary, chosen.uniform(1.0, 6.0))
        scene.over.wait(chosen.uniform(1.0, 4.0))
    scene.note(f"let {scene.name(replica)} go on")


def kill_worker(scene: Scene, chosen: random.Random) -> None:
    pid = _worker(scene, chosen)
    scene.strike(f"killed {_name(scene, pid)}")
    os.kill(pid, signal.SIGKILL)


def freeze_worker(scene: Scene, chosen: random.Random) -> None:
    """For some longer than its lease."""
    pid = _worker(scene, chosen)
    _freeze_process(scene, pid, _name(scene, pid), chosen.uniform(1.0, 8.0))


def kill_command(scene: Scene, chosen: random.Random) -> None:
    scene.until_job(scene.checkpoint.exists)
    scene.pause(chosen.uniform(0.0, 1.0))
    scene.strike("killed the command that leads the job")
    os.kill(scene.process.pid, signal.SIGKILL)


def freeze_command(scene: Scene, chosen: random.Random) -> None:
    _freeze_process(scene, scene.process.pid, "the command that leads the job", chosen.uniform(1.0, 6.0))


def step_clock(scene: Scene, chosen: random.Random) -> None:
    """Of all servers: for some seconds, or for good."""
    assert scene.clock is not None
    seconds, for_good = chosen.choice(_STEPS_S), chosen.random() < 0.5
    scene.note(f"stepped the clock by {seconds:+g} s")
    scene.clock.step(seconds)
    if not for_good:
        scene.over.wait(chosen.uniform(1.0, 4.0))
        scene.note("stepped the clock back")
        scene.clock.step(0.0)


def read(scene: Scene, chosen: random.Random) -> None:
    """Read the whole model again and again beside the job, as `ctr ps export` does."""
    job, url = scene.job, parse_redis_url(scene.url)
    scene.note("reading the model")
    end, count = monotonic() + 8.0, 0
    while monotonic() < end and not scene.over.is_set():
        with suppress(CtrError):  # such as: a server cannot be reached at the moment
            store = RedisStore(url, bits=job.feature_spec().bits, width=2, join=True)
            try:
                read_out(store)
                count += 1
            finally:
                store.close()
    scene.note(f"read the model {count} times")


FAULTS: dict[str, Fault] = {
    fault.__name__.replace("_", " ").replace("wait", "WAIT"): fault
    for fault in (
        *(kill_primary, kill_lagging_primary, freeze_primary, freeze_primary_and_replica, freeze_replica),
        *(reshard, reshard_to_new_node, fill_memory),
        *(restart_primary, restart_from_snapshot, restart_during_wait),
        *(kill_worker, freeze_worker, kill_command, freeze_command, step_clock, read),
    )
}


# How they are done


def _kill(scene: Scene, server: BreakableServer) -> None:
    if scene.over.is_set():  # what the job came to is being compared
        raise MissedError
    scene.strike(f"killed {scene.name(server)}")
    server.kill()


def _restart(scene: Scene, server: BreakableServer, after_s: float) -> None:
    sleep(after_s)
    server.restart()
    scene.note(f"restarted {scene.name(server)}")


def _save(scene: Scene, server: BreakableServer) -> None:
    take_snapshot(server)
    scene.note(f"{scene.name(server)} wrote a snapshot")


def _fail_over(scene: Scene, node: Node) -> None:
    if node.primary.alive:
        _kill(scene, node.primary)
    # Not before: it would come back as the primary that it was, and empty.
    scene.until(lambda: _is_replaced(scene, node), "a primary was not replaced")
    scene.note(f"{scene.name(node.primary)} was replaced")
    node.primary.restart()
    scene.until(scene.cluster().is_whole, "the cluster did not become whole again")
    scene.note("the cluster is whole again")


def _is_replaced(scene: Scene, node: Node) -> bool:
    now = scene.cluster().nodes()
    return any(each.primary in node.replicas and node.partitions[0] in each.partitions for each in now)


def _freeze(scene: Scene, servers: Sequence[BreakableServer], seconds: float) -> None:
    names = " and ".join(map(scene.name, servers))
    with scene.cluster().frozen(servers):
        scene.strike(f"froze {names}")
        scene.over.wait(seconds)
    scene.note(f"let {names} go on")


def _freeze_process(scene: Scene, pid: int, name: str, seconds: float) -> None:
    with scene.frozen(pid):
        scene.strike(f"froze {name}")
        scene.over.wait(seconds)
    scene.note(f"let {name} go on")


def _worker(scene: Scene, chosen: random.Random) -> int:
    """One of those that a job can lose; often the one that only its lease tells about."""
    wanted = 1 + (scene.process.remote is not None)
    scene.until_job(lambda: len(scene.workers()) > wanted)
    if scene.process.remote in scene.workers() and chosen.random() < 0.5:
        return scene.process.remote
    return chosen.choice(scene.workers())


def _name(scene: Scene, pid: int) -> str:
    return f"{'the remote worker' if pid == scene.process.remote else 'worker'} {pid}"


def _moved(scene: Scene, source: Node, target: Node, hash_slot: int) -> bool:
    """Try to move a hash slot; while a primary is down, the servers refuse."""
    members = target.primary.members()
    if any("myself" in each.flags and has_hash_slot(each, hash_slot) for each in members):
        return True
    alive = {each.address[1] for each in members if "master" in each.flags and not each.in_trouble}
    primaries = [each for each in scene.servers.servers if each.port in alive and each.alive]
    move_hash_slots(primaries, source.primary, target.primary, [hash_slot], keys_at_a_time=1)
    return True
