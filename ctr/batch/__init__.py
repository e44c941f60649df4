"""Batch optimizers: L-BFGS, and OWL-QN for L1, over all examples at once, in memory."""

from ctr.batch.examples import Examples
from ctr.batch.fit import Fit, fit
from ctr.batch.objective import Objective, Point
from ctr.batch.threads import Threads
