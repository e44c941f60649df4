"""What a training job through Redis will cost, before it is started: formulas, no measuring."""

from ctr.cost_model.costs import Costs, assumptions
from ctr.cost_model.estimates import LEAST_ROUNDS, Bound, Estimate, busiest_share, estimate, unique_features
from ctr.cost_model.workload import LARGEST_PARTITION_BITS, LEAST_PARTITIONS, Workload, default_bits, variants

__all__ = [
    "LARGEST_PARTITION_BITS",
    "LEAST_PARTITIONS",
    "LEAST_ROUNDS",
    "Bound",
    "Costs",
    "Estimate",
    "Workload",
    "assumptions",
    "busiest_share",
    "default_bits",
    "estimate",
    "unique_features",
    "variants",
]
