"""What a training job through Redis will cost, before it is started: formulas, no measuring."""

from ctr.cost_model.costs import Costs, assumptions
from ctr.cost_model.estimates import LEAST_ROUNDS, Bound, Estimate, estimate
from ctr.cost_model.requests import chunk_costs
from ctr.cost_model.slots import ChunkSlots
from ctr.cost_model.workload import Workload, default_bits, variants
