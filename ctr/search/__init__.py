"""The search for settings, by trials over one hashed data set."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.search.candidates import Candidate, Plan
    from ctr.search.examples import Examples
    from ctr.search.folds import Fold, RawRows, folds_of
    from ctr.search.plot import require_plot, write_plot
    from ctr.search.search import Ended, Progress, Search, Tried, require_optuna
    from ctr.search.trial import Judged, run_trial
    from ctr.search.tuning import Tuned, described, scales_in_words, tune

__getattr__ = lazy_package(__name__, __file__)
