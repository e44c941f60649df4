"""Metrics of click probabilities, accumulated in constant memory."""

from ctr.metrics.curves import Curves
from ctr.metrics.metrics import Metrics, MetricSummary, entropy
from ctr.metrics.reliability import OF_95_PERCENT
