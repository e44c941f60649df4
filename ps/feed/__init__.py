"""The feed of a model in Redis: the changes that pushes have made since a position."""

from ctr.ps.feed.feed import Feed, PartitionChange
