"""The optimizer, a worker's step, and rounds of threads on one machine."""

from ctr.learn.base_rate import base_rate, starting_state
from ctr.learn.ftrl import WIDTH, Float32, Ftrl
from ctr.learn.learner import Learner, Timings, warm_up
from ctr.learn.result import TrainResult
from ctr.learn.rounds import TrainSettings, default_chunk, read_out, train

__all__ = [
    "WIDTH",
    "Float32",
    "Ftrl",
    "Learner",
    "Timings",
    "TrainResult",
    "TrainSettings",
    "base_rate",
    "default_chunk",
    "read_out",
    "starting_state",
    "train",
    "warm_up",
]
