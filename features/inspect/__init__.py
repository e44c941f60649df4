"""Inspecting raw data: a first spec for it, what a spec finds in it, and the features of a few rows."""

from ctr.features.inspect.check import Check, check, telling_fields
from ctr.features.inspect.draft import draft_spec
from ctr.features.inspect.show import ShownFeature, collisions, show, show_values
