"""The transform steps: for each kind of field, how its values become features."""

from ctr.features.steps.numbers import buckets_of
from ctr.features.steps.registry import STEPS, Fit, OrderedFit, Step, register_step
from ctr.features.steps.texts import log_bounds
