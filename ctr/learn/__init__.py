"""A worker's training step, and training in rounds of threads on one machine."""

from ctr.learn.first_rows import FIRST_ROWS, base_rate, click_rate, expected_n, first_rows, starting_state
from ctr.learn.learner import WARM_UP_ROWS, Learner, require_convergence, warm_up
from ctr.learn.result import AfterPass, Convergence, Timings, Trained, TrainProgress, TrainResult
from ctr.learn.rounds import Rounds, TrainSettings, default_chunk
from ctr.learn.sampling import ALL_ROWS, Admission, AdmissionCounts, Sampling
from ctr.learn.whole_model import converted, read_out, weights_of
