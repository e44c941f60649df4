"""redis-servers of our own, for jobs on one machine, drills and tests."""

from ctr.ps.servers.cluster import Cluster, Node
from ctr.ps.servers.embedded import EmbeddedRedis, embedded_nodes
from ctr.ps.servers.redis_server import RedisServer, find_redis_server
from ctr.ps.servers.stepped_clock import SteppedClock
