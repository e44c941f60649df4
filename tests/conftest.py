"""Fixtures for every test."""

from __future__ import annotations

from tests.ps.servers import cluster_url, redis_url, shared_cluster, shared_redis, start_redis

__all__ = ["cluster_url", "redis_url", "shared_cluster", "shared_redis", "start_redis"]
