"""`CalibrateJob`: the settings of calibrating a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ctr.defaults import MOST_BAD
from ctr.outputs import beside
from ctr.settings.setting import Setting, Settings
from ctr.settings.shared import BadRows, Inputs, MaxBadFraction, Method, ModelFolder

if TYPE_CHECKING:
    from ctr.features import BadRowPolicy


class CalibrateJob(Settings):
    """Which model to calibrate, on which rows, and where the calibrated one goes."""

    inputs: Inputs
    model: ModelFolder
    method: Annotated[
        Method,
        Setting("isotonic (any rising curve; needs some thousand clicks) or platt (a line in log-odds)."),
    ]
    out: Annotated[
        Path,
        Setting("Folder for the calibrated model; a model that is there is replaced.", metavar="DIR"),
    ]
    replace: Annotated[bool, Setting("Put a new calibration in the place of one that the model has.")] = False
    on_bad_rows: BadRows = "fail"
    max_bad_fraction: MaxBadFraction = MOST_BAD

    @property
    def bad_row_policy(self) -> BadRowPolicy:
        """What becomes of bad rows."""
        from ctr.features import BadRowPolicy

        return BadRowPolicy.of(self.on_bad_rows, self.max_bad_fraction, beside(self.out, ".bad-rows"))
