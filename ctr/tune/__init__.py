"""Settings found by trials over one hashed data set."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_face

if TYPE_CHECKING:
    from ctr.tune.candidates import Candidate
    from ctr.tune.examples import Examples
    from ctr.tune.folds import Fold, folds_of
    from ctr.tune.plot import require_plot, write_plot
    from ctr.tune.raw_rows import RawRows
    from ctr.tune.search import Ended, Progress, Search, Tried, require_optuna
    from ctr.tune.trial import Judged, run_trial
    from ctr.tune.tuning import MOST_EPOCHS, TRIALS, Tuned, described, scales_in_words, tune

__getattr__ = lazy_face(__name__, __file__)
