"""`RedisUrl`: the address of a store, how to log in, and the name of the model."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ctr.errors import StoreError

try:
    from redis.driver_info import DriverInfo
except ImportError:  # redis-py before 7.1, which knows its version
    _DRIVER: dict[str, Any] = {}
else:  # or each client would search its version among the installed packages: 3/4 of its start-up time
    _DRIVER = {"driver_info": DriverInfo()}

SINGLE_SCHEMES = ("redis", "rediss")
CLUSTER_SCHEMES = ("redis+cluster", "rediss+cluster")

Address = tuple[str, int]

_SSL_OPTIONS = {"ca": "ssl_ca_certs", "cert": "ssl_certfile", "key": "ssl_keyfile"}
"""Options of redis-py, by the URL's parameter."""


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A parsed store URL. Its password is never printed."""

    scheme: str
    hosts: tuple[Address, ...]
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    model: str | None = None
    """From `?model=NAME`."""
    stream: str | None = None
    """From `?stream=NAME`, in the URL of a stream, which is not a store."""
    files: tuple[tuple[str, str], ...] = ()
    """Parameters and names of files for a `rediss` server: `ca`, its certificate authority; `cert`, the
    client certificate; `key`, the private key of that, unless it is in the same file.
    """

    @property
    def cluster(self) -> bool:
        """Whether it names a Redis Cluster."""
        return self.scheme in CLUSTER_SCHEMES

    def __str__(self) -> str:
        return f"{self.scheme}://{','.join(map(host_port, self.hosts))}/{self.db}"

    @property
    def public(self) -> str:
        """The URL without user and password; see `credentials`."""
        names = {"model": self.model, "stream": self.stream}
        query = urlencode({name: value for name, value in names.items() if value} | dict(self.files))
        return f"{self}?{query}" if query else str(self)

    @property
    def credentials(self) -> dict[str, str]:
        """Environment variables from which `parse_redis_url` reads user and password."""
        variables = {"CTR_REDIS_USER": self.username, "CTR_REDIS_PASSWORD": self.password}
        return {name: value for name, value in variables.items() if value is not None}

    def client_options(self, timeout_s: float) -> dict[str, Any]:
        """The options of every redis-py client of this store. Raises StoreError for a missing file."""
        options: dict[str, Any] = {
            "username": self.username,
            "password": self.password,
            "protocol": 2,
            # Otherwise redis-py repeats any command, even if it was applied already.
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": timeout_s,
            "max_connections": 1 << 30,  # includes broken ones, which are replaced again and again
            "socket_connect_timeout": min(timeout_s, 5.0),
            **_DRIVER,
        }
        if self.scheme.startswith("rediss"):
            options["ssl"] = True
            for name, path in self.files:
                self._require_readable(name, path)
                options[_SSL_OPTIONS[name]] = path
        return options

    def client(self, address: Address, timeout_s: float, **options: Any) -> Redis:
        """A new redis-py client of one node, for the caller to close. Raises as `client_options` does."""
        host, port = address
        return Redis(host=host, port=port, db=self.db, **self.client_options(timeout_s), **options)

    def _require_readable(self, name: str, path: str) -> None:
        try:
            open(path, "rb").close()
        except OSError as error:
            raise StoreError(
                f"{self}: {name}={path} cannot be read ({error.strerror}); the file has to be on every "
                "machine that uses this URL."
            ) from None


def parse_redis_url(url: str) -> RedisUrl:
    """Parse `redis://[user[:password]@]host:port[,host:port…]/db?model=NAME`.

    For `rediss`, there are also the parameters `ca`, `cert` and `key`, with names of files.

    User and password may also come from the environment: `CTR_REDIS_USER`, `CTR_REDIS_PASSWORD`. Raises
    StoreError for a URL that cannot be read; its message shows only the scheme, as the rest may contain a
    password.
    """
    scheme = url.partition("://")[0]
    if scheme not in SINGLE_SCHEMES + CLUSTER_SCHEMES:
        shown = f"{scheme}://" if scheme.isalpha() else "this URL"
        raise StoreError(
            f"{shown} names no Redis store; write redis://host:port/0 or redis+cluster://host:port,host:port."
        )
    parts = _URL.fullmatch(url)
    hosts = None if parts is None else [_HOST.fullmatch(host) for host in parts["hosts"].split(",")]
    if parts is None or hosts is None or not all(host and int(host["port"] or 0) < 1 << 16 for host in hosts):
        raise StoreError(
            f"{scheme}://…: the URL cannot be read (it is not shown, as it may hold a password); write "
            f"{scheme}://user:password@host:port/0?model=NAME, with %2F for a / in user or password, %3F "
            "for ?, %23 for #, %40 for @ and %25 for %, and an IPv6 address in brackets, as in [::1]:6379."
        )
    addresses = tuple(
        (host["name"].strip("[]"), int(host["port"] or 6379)) for host in hosts if host is not None
    )
    shown = f"{scheme}://{','.join(map(host_port, addresses))}"
    query = {name: values[-1] for name, values in parse_qs(parts["query"] or "", True).items()}
    if unknown := query.keys() - {"model", "stream", *_SSL_OPTIONS}:
        raise StoreError(
            f"{shown}: a URL of Redis has no parameter {sorted(unknown)[0]!r}; there are model, stream, ca, "
            "cert, key."
        )
    files = [name for name in _SSL_OPTIONS if name in query]
    if files and not scheme.startswith("rediss"):
        raise StoreError(f"{shown}: {files[0]} is for TLS; write {scheme.replace('redis', 'rediss', 1)}://…")
    if "key" in query and "cert" not in query:
        raise StoreError(f"{shown}: key needs a client certificate: add &cert=FILE.")
    if len(addresses) > 1 and scheme in SINGLE_SCHEMES:
        raise StoreError(f"{shown}: several hosts are a cluster; write {scheme}+cluster://…")
    for kind in ("model", "stream"):
        if kind in query:
            _check_name(kind, query[kind])
    return RedisUrl(
        scheme=scheme,
        hosts=addresses,
        db=int(parts["db"] or 0),
        username=unquote(parts["user"] or "") or os.environ.get("CTR_REDIS_USER"),
        password=unquote(parts["password"] or "") or os.environ.get("CTR_REDIS_PASSWORD"),
        model=query.get("model"),
        stream=query.get("stream"),
        files=tuple((name, query[name]) for name in files),
    )


# A second @ besides the one before the hosts means that a password contains /, ? or #.
_URL = re.compile(
    r"[a-z+]+://((?P<user>[^/?#@:]*)(:(?P<password>[^/?#@]*))?@)?(?P<hosts>[^/?#@]+)"
    r"(/(?P<db>[0-9]{0,9}))?(\?(?P<query>([^#@=&]+=[^#@&]*(&|$))*))?"
)
_HOST = re.compile(r"(?P<name>[\w.-]+|\[[0-9A-Fa-f:.]+(%[\w.-]+)?\])(:(?P<port>[0-9]{1,5}))?")


def _check_name(kind: str, name: str) -> None:
    """Raise StoreError for names of a `kind` that must not be part of keys."""
    size = len(name.encode(errors="surrogateescape"))
    if "{" in name or "}" in name:
        raise StoreError(
            f"the {kind} name {name[:_LONGEST_NAME]!r} has a brace, with which a Redis Cluster would store "
            f"the whole {kind} on one node; use another name (?{kind}=NAME)."
        )
    if not 0 < size <= _LONGEST_NAME or not name.isprintable():
        raise StoreError(
            f"the {kind} name {name[:40]!r} has {size} bytes; give one of 1 to {_LONGEST_NAME} bytes, "
            f"without control characters (?{kind}=NAME)."
        )


_LONGEST_NAME = 128  # bytes; the name is a part of every key


def host_port(address: Address) -> str:
    """An address as `host:port`."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
