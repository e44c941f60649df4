"""redis-server processes that ctr starts itself, for jobs on one machine and for tests."""

from ctr.ps.servers.embedded import EmbeddedRedis, embedded_nodes
from ctr.ps.servers.redis_server import OLDEST, RedisServer, find_redis_server
