"""Communication with Redis: URLs, connections, replies, retries, and the names of keys."""

from ctr.ps.wire.connection import Connection, Write, eviction_policies, require_kept, require_no_eviction
from ctr.ps.wire.fan_out import FanOut
from ctr.ps.wire.keys import (
    ALL_PRESENT,
    FEED,
    FOLDS,
    INCARNATION,
    STATE,
    BoardKeys,
    Keys,
    Watermark,
    watermark_field,
)
from ctr.ps.wire.link import (
    Command,
    Link,
    bitfield_add,
    bitfield_read,
    bulk_string,
    checked,
    command,
    open_link,
    read_queued,
)
from ctr.ps.wire.nodes import Member, Nodes, connect, is_login_refused, parse_members
from ctr.ps.wire.patience import BROKEN, PATIENCE_S, TROUBLE, Patience, require_passing, rights_hint
from ctr.ps.wire.replies import ReplyReader, ServerError, pairs, parse_info
from ctr.ps.wire.url import Address, RedisUrl, host_port, parse_redis_url
