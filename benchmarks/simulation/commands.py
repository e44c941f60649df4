"""`Commands`: what a simulated Redis has, and the commands that board and sessions use, a method for each."""

from __future__ import annotations

from collections import Counter
from heapq import nsmallest
from typing import Any

from benchmarks.simulation.virtual_time import clock

_INFO = b"maxmemory_policy:noeviction\r\nrole:master\r\nconnected_slaves:0\r\nrun_id:1\r\nmaster_replid:1\r\n"


class Integers:
    """A long string of integers, most of which are 0."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.values: dict[int, int] = {}


class Commands:
    """The keys of a node. Answers are bytes, numbers, lists, None for nil, or a `str` for a status."""

    def __init__(self) -> None:
        self.keys: dict[bytes, Any] = {}
        self.versions: Counter[bytes] = Counter()
        """How often each key was changed."""

    def ping(self) -> str:
        return "PONG"

    def info(self, section: bytes) -> bytes:
        return _INFO

    def time(self) -> list[bytes]:
        us = round(clock.now * 1e6)
        return [b"%d" % (us // 10**6), b"%d" % (us % 10**6)]

    def get(self, key: bytes) -> bytes | None:
        value = self.keys.get(key)
        return bytes(value) if isinstance(value, bytearray) else value

    def mget(self, *keys: bytes) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def set(self, key: bytes, value: bytes) -> str:
        self.versions[key] += 1
        self.keys[key] = value
        return "OK"

    def mset(self, *words: bytes) -> str:
        for key, value in zip(words[::2], words[1::2], strict=True):
            self.set(key, value)
        return "OK"

    def delete(self, *keys: bytes) -> int:
        there = [key for key in keys if self.keys.pop(key, None) is not None]
        self.versions.update(there)
        return len(there)

    def exists(self, *keys: bytes) -> int:
        return sum(key in self.keys for key in keys)

    def append(self, key: bytes, value: bytes) -> int:
        self.versions[key] += 1
        text = self.keys.get(key, b"")
        if not isinstance(text, bytearray):
            text = self.keys[key] = bytearray(text)
        text += value
        return len(text)

    def strlen(self, key: bytes) -> int:
        return len(self.keys.get(key, b""))

    def getrange(self, key: bytes, first: bytes, last: bytes) -> bytes:
        return bytes(self.keys.get(key, b"")[int(first) : int(last) + 1])

    def setrange(self, key: bytes, first: bytes, value: bytes) -> int:
        self.versions[key] += 1
        if value == b"\0":
            return self._integers(key, int(first) + 1).size
        text = self.keys[key]
        text[int(first) : int(first) + len(value)] = value
        return len(text)

    def bitfield(self, key: bytes, *words: bytes) -> list[int]:
        self.versions[key] += 1
        values, answer = self._integers(key).values, []
        for offset, increment in zip(words[2::4], words[3::4], strict=True):
            at = int(offset[1:])
            values[at] = values.get(at, 0) + int(increment)
            answer.append(values[at])
        return answer

    def bitfield_ro(self, key: bytes, *words: bytes) -> list[int]:
        values = self._integers(key).values if key in self.keys else {}
        return [values.get(int(offset[1:]), 0) for offset in words[2::3]]

    def hset(self, key: bytes, *words: bytes) -> int:
        self.versions[key] += 1
        fields = self.keys.setdefault(key, {})
        before = len(fields)
        fields.update(zip(words[::2], words[1::2], strict=True))
        return len(fields) - before

    def setbit(self, key: bytes, bit: bytes, value: bytes) -> int:
        self.versions[key] += 1
        bits = self.keys.setdefault(key, set())
        bits.add(int(bit))
        return 0

    def bitcount(self, key: bytes) -> int:
        return len(self.keys.get(key, ()))

    def hincrby(self, key: bytes, field: bytes, increment: bytes) -> int:
        self.versions[key] += 1
        fields = self.keys.setdefault(key, {})
        fields[field] = b"%d" % (int(fields.get(field, 0)) + int(increment))
        return int(fields[field])

    def hdel(self, key: bytes, *fields: bytes) -> int:
        there = [field for field in fields if self._members(key).pop(field, None) is not None]
        self.versions[key] += bool(there)
        return len(there)

    def hget(self, key: bytes, field: bytes) -> bytes | None:
        return self._members(key).get(field)

    def hmget(self, key: bytes, *fields: bytes) -> list[bytes | None]:
        return [self._members(key).get(field) for field in fields]

    def hgetall(self, key: bytes) -> list[bytes]:
        return [word for item in self._members(key).items() for word in item]

    def hlen(self, key: bytes) -> int:
        return len(self._members(key))

    def zadd(self, key: bytes, *words: bytes) -> int:
        options = {word for word in words[:2] if word in (b"XX", b"NX", b"GT")}
        words = words[len(options) :]
        scores, added = self.keys.setdefault(key, {}), 0
        for score, member in zip(map(int, words[::2]), words[1::2], strict=True):
            old = scores.get(member)
            stays = (
                b"XX" in options if old is None else b"NX" in options or (b"GT" in options and score <= old)
            )
            if not stays and score != old:
                scores[member] = score
                added += old is None
                self.versions[key] += 1
        return added

    def zrem(self, key: bytes, *members: bytes) -> int:
        return self.hdel(key, *members)

    def zcard(self, key: bytes) -> int:
        return self.hlen(key)

    def zscore(self, key: bytes, member: bytes) -> bytes | None:
        score = self._members(key).get(member)
        return None if score is None else b"%d" % score

    def zmscore(self, key: bytes, *members: bytes) -> list[bytes | None]:
        return [self.zscore(key, member) for member in members]

    def zrange(self, key: bytes, first: bytes, last: bytes, with_scores: bytes) -> list[bytes]:
        """All, or the first."""
        scores = [(score, member) for member, score in self._members(key).items()]
        some = sorted(scores) if last == b"-1" else nsmallest(int(last) + 1, scores)
        return [word for score, member in some for word in (member, b"%d" % score)]

    def zdiff(self, count: bytes, key: bytes, other: bytes) -> list[bytes]:
        return [member for member in self._members(key) if member not in self._members(other)]

    def _members(self, key: bytes) -> dict[bytes, Any]:
        members: dict[bytes, Any] = self.keys.get(key, {})
        return members

    def _integers(self, key: bytes, size: int = 0) -> Integers:
        value = self.keys.get(key)
        if not isinstance(value, Integers):  # or a short string, of zeros
            value = self.keys[key] = Integers(max(size, len(value or b"")))
        return value


setattr(Commands, "del", Commands.delete)  # no name that a method could have
