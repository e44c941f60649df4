"""Metrics of click probabilities, accumulated in constant memory."""

from ctr.metrics.curves import OF_95_PERCENT, Curves
from ctr.metrics.metrics import Metrics, MetricSummary, entropy
