"""The trained model, its folder, scoring and evaluation."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.model.artifact import (
        SavedState,
        load_detached,
        load_model,
        load_state,
        require_model_or_nothing,
        save_model,
        state_of,
        update_manifest,
    )
    from ctr.model.calibration import METHODS, Calibration, Method
    from ctr.model.calibration_fit import (
        Calibrated,
        calibrate,
        require_both_labels,
        require_method,
        require_uncalibrated,
    )
    from ctr.model.comparison import VALUES_KEPT, Compared, Difference, Slices, compare, naming
    from ctr.model.evaluation import evaluate, note_holdout, note_passes, note_unseen
    from ctr.model.examples import Examples, draw_examples
    from ctr.model.explanation import Contribution, Explanation, explain, explain_row
    from ctr.model.folder import DIGESTS, SEEN, input_digests, load_optimizer, read_manifest, seen_rows
    from ctr.model.inputs import TABLE, inputs_of, paths_of, without_file
    from ctr.model.linear import LinearModel, chunk_margins, probabilities_of
    from ctr.model.model import Model
    from ctr.model.scoring import predict_file, require_predictable
    from ctr.model.unseen import MOST_ROWS, UnseenCounts

__getattr__ = lazy_package(__name__, __file__)
