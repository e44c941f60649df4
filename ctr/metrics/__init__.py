"""Metrics of click probabilities, accumulated in constant memory."""

from ctr.metrics.metrics import Metrics, MetricSummary, entropy
