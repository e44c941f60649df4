"""A worker's step, and rounds of threads on one machine."""

from ctr.learn.admission import Admission, AdmissionCounts
from ctr.learn.base_rate import FIRST_ROWS, base_rate, click_rate, first_rows, starting_state
from ctr.learn.learner import WARM_UP_ROWS, Learner, Timings, require_convergence, warm_up
from ctr.learn.n_range import expected_n
from ctr.learn.result import Convergence, Trained, TrainProgress, TrainResult
from ctr.learn.rounds import Rounds, TrainSettings, default_chunk, read_out
from ctr.learn.sampling import ALL_ROWS, SampledSource, Sampling
