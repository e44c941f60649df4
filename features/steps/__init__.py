"""The transform steps: how the values of each kind of field become features."""

from ctr.features.steps.numbers import buckets_of
from ctr.features.steps.registry import STEPS, Fit, OrderedFit, Step, register_step
from ctr.features.steps.texts import log_bounds
