"""The feed of changes of a model in Redis: what pushes have added since a position."""

from ctr.ps.feed.feed import Feed, PartitionChange
