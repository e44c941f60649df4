"""Batch optimizers: L-BFGS, and OWL-QN for L1, over all examples at once, in memory."""

from ctr.batch.matrix import Matrix
from ctr.batch.minimise import Fit, fit
from ctr.batch.objective import Objective, Point
