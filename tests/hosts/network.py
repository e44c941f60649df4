"""`Network`: hosts on this machine, each in a network namespace of its own, behind a switch of ours."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

from ctr.errors import CtrError
from tests.hosts.switch import Conditions, Line, mac, port, remove

ROOT = Path(__file__).parents[2]
_CLONE_NEWNET = 0x40000000
_END_S = 30.0


class NetworkError(CtrError):
    """No such network can be made here."""


def why_not() -> str | None:
    """Why there can be no hosts here; None if there can."""
    if sys.platform != "linux":
        return "network namespaces are of Linux"
    if missing := [name for name in ("ip", "nsenter") if shutil.which(name) is None]:
        return f"{' and '.join(missing)} not found: apt-get install iproute2 util-linux"
    if os.geteuid() != 0:
        return "network namespaces without the right: run it as root"
    name = f"ctr-{os.getpid()}-try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    remove([name], ())
    if tried.returncode:
        said = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
        return f"network namespaces without the right ({said}): run it as root with CAP_SYS_ADMIN"
    return None


class Network:
    """So many hosts, with the numbers from 0, until the block ends; the calling thread moves to host 0.

    Whatever runs on them is killed when the block ends, or this process does. Raises NetworkError.
    """

    def __init__(self, hosts: int) -> None:
        self.hosts = hosts
        self.dropped = 0
        """Frames that lines had lost when conditions were last set."""
        self._names = [f"ctr-{os.getpid()}-{name}" for name in (*map(str, range(hosts)), "switch")]

    def __enter__(self) -> Self:
        if (reason := why_not()) is not None:
            raise NetworkError(reason)
        self._home = os.open("/proc/self/ns/net", os.O_RDONLY)
        try:
            self._make()
            self._switch = self._start_switch()
            self.set(Conditions())
        except BaseException:
            remove(self._names, ())
            os.close(self._home)
            raise
        self._move(os.open(f"/run/netns/{self._names[0]}", os.O_RDONLY))
        return self

    def __exit__(self, *_: object) -> None:
        self._move(self._home)
        assert self._switch.stdin is not None
        self._switch.stdin.close()
        try:
            self._switch.wait(_END_S)
        finally:
            self._switch.kill()
            remove(self._names, ())

    def set(self, conditions: Conditions) -> None:
        """From now on, lines are like that. What is under way arrives."""
        assert self._switch.stdin is not None
        assert self._switch.stdout is not None
        try:
            self._switch.stdin.write(conditions.to_json() + "\n")
            self._switch.stdin.flush()
            answer = self._switch.stdout.readline()
        except OSError:
            answer = ""
        if not answer:
            raise NetworkError("the switch between the hosts has ended.")
        self.dropped = int(answer)

    @staticmethod
    def address(host: int) -> str:
        """Its IP address."""
        return f"10.0.0.{host + 1}"

    def enter(self, host: int) -> list[str]:
        """Words before a command that make it run on a host."""
        return ["nsenter", f"--net=/run/netns/{self._names[host]}"]

    def small_packets(self, hosts: Iterable[int]) -> None:
        """Let these send packet by packet, so that one may be lost and not a bundle of 44."""
        for host in hosts:
            _run([*self.enter(host), "ip", "link", "set", "eth0", "gso_max_segs", "1"])

    def _make(self) -> None:
        switch = self._names[-1]
        lines = [f"netns add {name}" for name in self._names]
        for number in range(self.hosts):
            ends = f"{port(number)} netns {switch} type veth peer name eth0 netns {self._names[number]}"
            lines.append(f"link add {ends} address {mac(number)}")
        _batch([], lines)
        for number in range(self.hosts):
            self._quiet(self.enter(number))
            address = f"{self.address(number)}/24"
            ups = ["link set lo up", f"addr add {address} dev eth0", "link set eth0 up"]
            ups += [
                f"neigh replace {self.address(other)} lladdr {mac(other)} dev eth0 nud permanent"
                for other in range(self.hosts)
                if other != number
            ]
            _batch(self.enter(number), ups)
        self._quiet(self._in_switch)
        _batch(self._in_switch, [f"link set {port(number)} up" for number in range(self.hosts)])

    @property
    def _in_switch(self) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self._names[-1]}"]

    @staticmethod
    def _quiet(enter: Sequence[str]) -> None:
        """No IPv6, whose neighbours announce themselves; systems without it have no such file."""
        path = "/proc/sys/net/ipv6/conf/default/disable_ipv6"
        _run([*enter, "sh", "-c", f"[ ! -e {path} ] || echo 1 > {path}"])

    def _start_switch(self) -> subprocess.Popen[str]:
        command = [
            *self._in_switch,
            sys.executable,
            "-m",
            "tests.hosts.switch",
            str(os.getpid()),
            *self._names,
        ]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process, which ends it
        )

    @staticmethod
    def _move(namespace: int) -> None:
        """Move the calling thread there, and those that it starts."""
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.setns(namespace, _CLONE_NEWNET)
        os.close(namespace)
        if failed:
            raise NetworkError(f"setns: {os.strerror(ctypes.get_errno())}")


def remove_left() -> None:
    """Remove hosts, and what runs on them, of processes that were killed and are no more."""
    places = Path("/run/netns")
    names = [path.name for path in places.glob("ctr-*-*")] if places.exists() else []
    remove([name for name in names if not Path("/proc", name.split("-")[1]).exists()], ())


def every(hosts: Iterable[int], line: Line, others: Mapping[int, Line] | None = None) -> dict[int, Line]:
    """The same line for all these hosts, but for some."""
    return {**dict.fromkeys(hosts, line), **(others or {})}


def _batch(enter: Sequence[str], lines: Sequence[str]) -> None:
    _run([*enter, "ip", "-batch", "-"], "\n".join(lines) + "\n")


def _run(command: Sequence[str], text: str = "") -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip()}")
