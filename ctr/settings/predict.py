"""`PredictJob`: the settings of writing predictions to a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import model_validator

from ctr.defaults import MOST_BAD
from ctr.errors import SettingError, named
from ctr.outputs import beside
from ctr.settings.setting import Setting, Settings
from ctr.settings.shared import BadRows, Inputs, MaxBadFraction, ModelFolder

if TYPE_CHECKING:
    from ctr.features import BadRowPolicy


class PredictJob(Settings):
    """Which rows to score with which model, and where the predictions go."""

    inputs: Inputs
    model: ModelFolder
    out: Annotated[
        Path,
        Setting("Predictions go here: .parquet, .csv or .tsv; - is standard output, as CSV.", metavar="FILE"),
    ]
    columns: Annotated[
        str,
        Setting(
            "Columns of the raw rows to write before the prediction, as text, such as an id.",
            metavar="A,B,…",
        ),
    ] = ""
    margins: Annotated[bool, Setting("Write the log-odds, too, to the column `log_odds`.")] = False
    unlabelled: Annotated[
        bool,
        Setting("Files without a header lack the label column; needed where that cannot be detected."),
    ] = False
    on_bad_rows: BadRows = "fail"
    max_bad_fraction: MaxBadFraction = MOST_BAD

    @property
    def named_columns(self) -> list[str]:
        """The columns that precede the prediction."""
        return [name.strip() for name in self.columns.split(",")] if self.columns else []

    @property
    def to_stdout(self) -> bool:
        """Whether the predictions go to standard output."""
        return str(self.out) == "-"

    @property
    def bad_row_policy(self) -> BadRowPolicy:
        """What becomes of bad rows."""
        from ctr.features import BadRowPolicy

        return BadRowPolicy.of(self.on_bad_rows, self.max_bad_fraction, beside(self.out, ".bad-rows"))

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        names = self.named_columns
        if "" in names or len({*names, "prediction", "log_odds"}) < len(names) + 2:
            raise SettingError(
                f"{named('columns')} is {self.columns!r}: name each column once, with commas between them, "
                "and none that is called prediction or log_odds."
            )
        if self.to_stdout and self.on_bad_rows == "quarantine":
            raise SettingError(
                f"{named('out')} - has no place beside it for bad rows; write predictions to a file."
            )
        return self
