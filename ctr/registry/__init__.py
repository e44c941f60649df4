"""A registry of models: immutable versions by model id, and labels that point to them."""

from ctr.registry.registry import LabelEntry, Registry, Version, parse_place
