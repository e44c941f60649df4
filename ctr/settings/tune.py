"""`TuneJob`: the settings of a search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from ctr.defaults import MOST_BAD, MOST_WORKERS
from ctr.errors import SettingError, named
from ctr.outputs import beside
from ctr.settings.setting import Setting, Settings
from ctr.settings.shared import BadRows, HoldoutWhere, Inputs, MaxBadFraction, Spec

if TYPE_CHECKING:
    from ctr.features import BadRowPolicy


class TuneJob(Settings):
    """Which rows to find settings for, and how long to look."""

    inputs: Inputs
    out: Annotated[
        Path,
        Setting(
            "The best settings are written to this file, for `ctr train --settings`.",
            metavar="SETTINGS.yaml",
        ),
    ]
    spec: Spec = None
    trials: Annotated[int, Field(ge=1, le=100_000), Setting("Settings to try.")] = 40
    workers: Annotated[
        int | None,
        Field(ge=1, le=MOST_WORKERS),
        Setting(
            "Trials that run at the same time.  \\[default: one per core]",
        ),
    ] = None
    holdout_fraction: Annotated[
        float | None,
        Field(ge=0.001, le=0.99),
        Setting(
            "Judge by the last part of the rows, and learn from those before.  \\[default: the last fifth; "
            "of fewer than 250,000 rows, each fifth by all the others]",
        ),
    ] = None
    holdout_where: Annotated[
        HoldoutWhere,
        Setting(
            "Score on the rows that meet this, and learn from the others, such as 'click_time >= "
            "2017-11-09': as with `ctr train`.",
            metavar="CONDITION",
        ),
    ] = None
    max_epochs: Annotated[
        int, Field(ge=1), Setting("The most passes to try; a trial ends when one more gains nothing.")
    ] = 30
    crosses: Annotated[
        int,
        Field(ge=0),
        Setting(
            "Also try up to so many crosses, found as by `ctr features suggest`, without the rows that judge "
            "them; a spec with those that are worth it is written beside the settings.",
            metavar="N",
        ),
    ] = 0
    rows: Annotated[
        int | None,
        Field(ge=10),
        Setting(
            "Use at most this many rows, from the start, and at most 3 passes; with {holdout_where}, all "
            "rows that meet it are scored on.  \\[default: all]",
            metavar="N",
        ),
    ] = None
    seed: Annotated[int, Field(ge=0, le=2**32 - 1), Setting("The same seed finds the same settings.")] = 0
    on_bad_rows: BadRows = "fail"
    max_bad_fraction: MaxBadFraction = MOST_BAD

    @property
    def bad_row_policy(self) -> BadRowPolicy:
        """What becomes of bad rows."""
        from ctr.features import BadRowPolicy

        return BadRowPolicy.of(self.on_bad_rows, self.max_bad_fraction, beside(self.out, ".bad-rows"))

    @property
    def crossed_spec(self) -> Path:
        """Where the spec with crosses goes, if some are worth it."""
        return beside(self.out, ".spec.yaml")

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if "-" in self.inputs:
            raise SettingError("- (standard input) can be read only once; write its rows to a file.")
        if self.holdout_where is not None and (self.holdout_fraction is not None or self.crosses):
            raise SettingError(
                f"{named('holdout_where')} goes without {named('holdout_fraction')} and {named('crosses')}."
            )
        if self.crosses:
            self._require_raw()
        return self

    def _require_raw(self) -> None:
        """Raise SettingError where crosses cannot be tried."""
        from ctr.features import is_dataset

        if self.spec is None or any(map(is_dataset, self.inputs)):
            raise SettingError(
                f"{named('crosses')} needs raw files and {named('spec')}: in a hashed data set, fields can "
                "no longer be crossed."
            )
        if self.on_bad_rows != "fail":
            raise SettingError(
                f"{named('crosses')} reads the rows several times, and takes none that are bad."
            )
