"""`EvaluateJob`: the settings of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import model_validator

from ctr.defaults import MOST_BAD
from ctr.errors import SettingError, named
from ctr.outputs import beside
from ctr.settings.setting import Setting, Settings
from ctr.settings.shared import BadRows, Inputs, MaxBadFraction

if TYPE_CHECKING:
    from ctr.features import BadRowPolicy


class EvaluateJob(Settings):
    """Which models to evaluate, on which rows."""

    inputs: Inputs
    model: Annotated[
        Sequence[Path],
        Setting(
            "Folder of a trained model; several models are compared on the same rows.",
            metavar="DIR",
            kind=list[str],
        ),
    ]
    by: Annotated[
        Sequence[str],
        Setting(
            "Metrics for each value of this column of the raw rows, too; may be given several times.",
            metavar="COLUMN",
            kind=list[str],
        ),
    ] = ()
    unweighted: Annotated[
        bool,
        Setting("Let all rows count alike, also where the spec has a column of weights; data may lack it."),
    ] = False
    on_bad_rows: BadRows = "fail"
    max_bad_fraction: MaxBadFraction = MOST_BAD

    @property
    def bad_row_policy(self) -> BadRowPolicy:
        """What becomes of bad rows; kept ones are beside the first input, or here if it is no path."""
        from ctr.features import BadRowPolicy, is_glob, is_uri

        first = str(next(iter(self.inputs), "-"))  # none: reading will say so
        place = Path("inputs" if first == "-" or is_uri(first) or is_glob(first) else first)
        return BadRowPolicy.of(self.on_bad_rows, self.max_bad_fraction, beside(place, ".bad-rows"))

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        for name, values in (("model", self.model), ("by", self.by)):
            if len(set(values)) < len(values):
                raise SettingError(f"one {named(name)} is there twice; name each once.")
        if len(self.model) > 1 and "-" in self.inputs:
            raise SettingError(
                f"standard input can be read once, for one {named('model')}; give a file to compare on."
            )
        return self
