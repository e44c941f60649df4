"""How Redis is spoken to: URLs, connections, replies, transactions, and the names of keys."""

from ps.wire.channel import Channel
from ps.wire.commands import bitfield_read, bulk_string, command, read_queued
from ps.wire.eviction import eviction_policies, require_kept, require_no_eviction
from ps.wire.keys import (
    CROWDED,
    FOLDS,
    INCARNATION,
    STATE,
    WATERMARK_HASHES,
    BoardPart,
    Keys,
    RecordsPart,
    Watermark,
    watermark_field,
)
from ps.wire.link import Link, open_link
from ps.wire.nodes import Nodes, connect
from ps.wire.patience import BROKEN, PATIENCE_S, TROUBLE, Patience, require_passing, rights_hint
from ps.wire.replies import ReplyReader, ServerError, pairs
from ps.wire.topology import Member, Primary, Topology, cluster_topology, parse_members, single_server
from ps.wire.transactions import Command, Decision, Transactions, checked
from ps.wire.url import Address, RedisUrl, host_port, is_near, parse_redis_url
