"""`BuildJob`: the settings of building hashed data sets."""

from __future__ import annotations

from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from ctr.defaults import MOST_BAD
from ctr.errors import SettingError, named
from ctr.outputs import beside
from ctr.settings.setting import Setting, Settings
from ctr.settings.shared import (
    BadRows,
    EngineName,
    HoldoutWhere,
    Master,
    MaxBadFraction,
    Place,
    RawInputs,
    RawSpec,
    chosen_rows,
    require_engine,
)

if TYPE_CHECKING:
    from ctr.features import BadRowPolicy
    from ctr.features.readers import RowChoice


class BuildJob(Settings):
    """What to hash, and where it goes."""

    inputs: RawInputs
    spec: RawSpec
    out: Annotated[
        Place,
        Setting(
            "The data set is written to this folder, or behind this URI, such as s3://bucket/days.hashed.",
            metavar="DIR",
            kind=str,
        ),
    ]
    holdout_where: Annotated[
        HoldoutWhere,
        Setting(
            "Leave the rows that meet this out of the data set, and write them to {holdout_out}: a "
            "condition as in `ctr train`, such as 'click_time >= 2017-11-09'.",
            metavar="CONDITION",
        ),
    ] = None
    holdout_out: Annotated[
        Place | None,
        Setting(
            "With {holdout_where}: the rows that are held out are written to this folder, a data "
            "set for `ctr train --holdout` and `ctr evaluate`.",
            metavar="DIR",
            kind=str | None,
        ),
    ] = None
    shuffle: Annotated[
        int | None,
        Field(ge=0, le=(1 << 64) - 1),
        Setting("Put the rows in a random order; the same seed gives the same order.", metavar="SEED"),
    ] = None
    dictionary: Annotated[
        int | None,
        Field(ge=1, le=10_000_000),
        Setting("Also write the texts of the N most frequent features; building takes longer.", metavar="N"),
    ] = None
    windows_from: Annotated[
        Path | None,
        Setting(
            "The windows of the spec go on from those of this data set or model: that of the day before.",
            metavar="DIR",
        ),
    ] = None
    engine: EngineName = None
    master: Master = None
    on_bad_rows: BadRows = "fail"
    max_bad_fraction: MaxBadFraction = MOST_BAD

    @property
    def outs(self) -> dict[Path | str, RowChoice | None]:
        """Which rows go to which folder. What the spec learns and a dictionary are of the last."""
        if self.holdout_where is None or self.holdout_out is None:
            return {self.out: None}
        # The rows that are held out are looked for first: if there are none, little was done.
        return {
            self.holdout_out: chosen_rows(self.holdout_where),
            self.out: chosen_rows(self.holdout_where, meets=False),
        }

    def bad_row_policy(self, out: Path | str) -> BadRowPolicy:
        """What becomes of the bad rows of this data set; of one behind a URI, in the working folder."""
        from ctr.features import BadRowPolicy

        place = out if isinstance(out, Path) else Path(PurePosixPath(out).name)
        return BadRowPolicy.of(self.on_bad_rows, self.max_bad_fraction, beside(place, ".bad-rows"))

    @model_validator(mode="after")
    def _suit_engine(self) -> Self:
        require_engine(self.engine, self.master)
        if self.engine is None:
            return self
        alone = {
            "shuffle": "to put rows in a random order takes all of them",
            "dictionary": "features are counted over all rows",
        }
        for name, reason in alone.items():
            if getattr(self, name) is not None:
                raise SettingError(
                    f"{named(name)}: {reason}, which no task of {named('engine')} {self.engine} has; leave"
                    " one of the two out."
                )
        if "-" in self.inputs:
            raise SettingError(
                f"- (standard input) cannot be split for {named('engine')} {self.engine}; write it to a file,"
                " and give that."
            )
        return self

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if self.holdout_where is None and self.holdout_out is None:
            return self
        if self.holdout_where is None or self.holdout_out is None:
            raise SettingError(
                f"{named('holdout_where')} CONDITION and {named('holdout_out')} DIR belong together; give "
                "both."
            )
        one, other = map(_resolved, (self.out, self.holdout_out))
        if one == other or one in other.parents or other in one.parents:
            raise SettingError(
                f"{named('out')} {self.out} and {named('holdout_out')} {self.holdout_out}: neither may be, "
                "or lie in, the other."
            )
        if "-" in self.inputs:
            raise SettingError(
                "- (standard input) can be read only once: not for a part of it as hold-out; write it to a "
                "file, and give that."
            )
        return self


def _resolved(place: Path | str) -> PurePath:
    return place.resolve() if isinstance(place, Path) else PurePosixPath(place)
