"""How Redis is spoken to: URLs, connections, replies, transactions, and the names of keys."""

from ps.wire.channel import PATIENCE_S, Channel
from ps.wire.commands import bitfield_read, bulk_string, command, read_queued, require_passing
from ps.wire.keys import RUN, STATE, BoardPart, Keys, Watermark, applied_field
from ps.wire.nodes import (
    Address,
    Link,
    Nodes,
    RedisUrl,
    connect,
    host_port,
    is_near,
    parse_redis_url,
    rights_hint,
)
from ps.wire.replies import ReplyReader, ServerError
from ps.wire.resp_kernels import (
    decode_range,
    encode_pull,
    encode_push,
    parse_integers,
    pull_size,
    push_size,
    skip_integers,
)
from ps.wire.topology import Primary, Topology, cluster_topology, single_server
from ps.wire.transactions import Command, Decision, Transactions

__all__ = [
    "PATIENCE_S",
    "RUN",
    "STATE",
    "Address",
    "BoardPart",
    "Channel",
    "Command",
    "Decision",
    "Keys",
    "Link",
    "Nodes",
    "Primary",
    "RedisUrl",
    "ReplyReader",
    "ServerError",
    "Topology",
    "Transactions",
    "Watermark",
    "applied_field",
    "bitfield_read",
    "bulk_string",
    "cluster_topology",
    "command",
    "connect",
    "decode_range",
    "encode_pull",
    "encode_push",
    "host_port",
    "is_near",
    "parse_integers",
    "parse_redis_url",
    "pull_size",
    "push_size",
    "read_queued",
    "require_passing",
    "rights_hint",
    "single_server",
    "skip_integers",
]
