"""What a command runs, from its inputs to its result."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.jobs.build import Portion, build_datasets, fit_files, open_portions
    from ctr.jobs.calibrate import CalibrationOutcome, calibrate_model
    from ctr.jobs.cost_model import LEAST_ROUNDS, Costs, Estimate, Workload, estimate
    from ctr.jobs.evaluate import Evaluation, evaluate_models
    from ctr.jobs.export import export_model
    from ctr.jobs.predict import Predicted, predict_rows
    from ctr.jobs.streaming import StreamOutcome, run_stream_job
    from ctr.jobs.training.job import require_days, run, run_train_job, train_by_days
    from ctr.jobs.training.memory import learn_in_memory
    from ctr.jobs.training.outcome import Remains, TrainOutcome, require_places
    from ctr.jobs.training.passes import PassEvaluations
    from ctr.jobs.training.setup import require_classes, set_up
    from ctr.jobs.training.staging import remove_staged, require_stageable, staging_place
    from ctr.jobs.tune import TuneOutcome, run_tune_job, tuned
    from ctr.jobs.warm_up import run_small_jobs

__getattr__ = lazy_package(__name__, __file__)
