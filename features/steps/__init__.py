"""The transform steps: for each kind of field, how its values become features."""

from features.steps.numbers import buckets_of
from features.steps.registry import STEPS, Fit, Step, register_step
from features.steps.texts import log_bounds
