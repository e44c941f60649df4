"""How examples become weights: FTRL-Proximal, AdaGrad, and the settings of L-BFGS."""

from ctr.optimizers.lbfgs import Lbfgs
from ctr.optimizers.optimizer import Float32, Float64, Optimizer
from ctr.optimizers.passes import NOTHING, Passes
from ctr.optimizers.registry import OPTIMIZERS, choose_optimizer, optimizer_from_json
