"""How examples become weights: FTRL-Proximal, AdaGrad, and the settings of L-BFGS."""

from ctr.optimizers.lbfgs import Lbfgs
from ctr.optimizers.optimizer import NOTHING, Float32, Float64, Optimizer, Passes
from ctr.optimizers.registry import OPTIMIZERS, choose_optimizer, optimizer_from_json
