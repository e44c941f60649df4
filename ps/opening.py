"""`open_store`: the one module that knows every store, by the scheme of its URL."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from ctr.errors import StoreError
from ctr.ps.fixed_point_kernels import COARSEST_N_BITS, FINEST_Z_BITS
from ctr.ps.store import Store


def open_store(
    url: str,
    *,
    bits: int,
    width: int,
    facts: Mapping[str, str] | None = None,
    z_bits: int = FINEST_Z_BITS,
    n_bits: int = COARSEST_N_BITS,
    restoring: bool = False,
    partitions: int | None = None,
) -> Store:
    """The store at `url`, for `2**bits` slots of `width` numbers.

    - `memory://`: a new, empty store in this process.
    - `embedded://?shards=2`: redis-server processes of our own on this machine, which end with the store.
    - `redis://[user:password@]host:port/db`, `rediss://…` with TLS, `redis+cluster://host:port,host:port`,
      `rediss+cluster://…`: parameters in Redis; `?model=NAME` names them. `facts` describe the model; an
      existing model with other facts is refused. `z_bits` and `n_bits` set the resolution of its numbers;
      `restoring` and `partitions` are for models to be restored: see `RedisStore`.

    Raises StoreError for a URL that names no store, for bits outside 1..40, and if a server is unreachable or
    refuses.
    """
    require_store_url(url)
    scheme, _, rest = url.partition("://")
    if scheme == "memory":
        from ctr.ps.memory import MemoryStore

        return MemoryStore(bits, width)
    from ctr.ps.redis import RedisStore
    from ctr.ps.wire import parse_redis_url

    with ExitStack() as servers:
        if scheme == "embedded":
            from ctr.ps.servers import EmbeddedRedis, embedded_nodes

            url = servers.enter_context(EmbeddedRedis(embedded_nodes(rest))).url
        store = RedisStore(
            parse_redis_url(url),
            bits=bits,
            width=width,
            facts=facts,
            z_bits=z_bits,
            n_bits=n_bits,
            restoring=restoring,
            partitions=partitions,
        )
        store.on_close.push(servers.pop_all())
        return store


def require_store_url(url: str) -> None:
    """Raise StoreError for a URL that names no store; its message shows nothing that may be a password."""
    scheme, mark, rest = url.partition("://")
    if scheme == "memory" and mark:
        if rest:
            raise StoreError("the store in memory has no address: write memory://")
    elif scheme == "embedded" and mark:
        from ctr.ps.servers import embedded_nodes

        embedded_nodes(rest)
    elif scheme in {"redis", "rediss", "redis+cluster", "rediss+cluster"} and mark:
        from ctr.ps.wire import parse_redis_url

        parsed = parse_redis_url(url)
        if parsed.stream is not None:
            raise StoreError(f"{parsed}: names a stream, and not a model; write ?model=NAME.")
    else:
        problem = (
            f"no store is called {scheme}{mark}" if mark and scheme.isalpha() else "this URL names no store"
        )
        raise StoreError(
            f"{problem}: use memory://, embedded://?shards=1, redis://, rediss:// or redis+cluster://"
        )


def without_password(url: str) -> str:
    """A store's URL without user and password, to be shown."""
    scheme, mark, rest = url.partition("://")
    return scheme + mark + rest.rpartition("@")[2]
