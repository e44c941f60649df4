"""redis-servers of our own, for jobs on one machine, drills and tests."""

from ps.servers.cluster import Cluster, Node
from ps.servers.embedded import EmbeddedRedis, embedded_nodes
from ps.servers.redis_server import RedisServer, find_redis_server
from ps.servers.stepped_clock import SteppedClock
