"""`JoinJob`: the settings of joining rows and clicks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from ctr.errors import SettingError, named
from ctr.settings.setting import Setting, Settings
from ctr.settings.shared import Duration, FolderOrStream, duration

if TYPE_CHECKING:
    from ctr.stream import JoinSettings


class JoinJob(Settings):
    """Which events to join, how, and where the rows go."""

    log: Annotated[
        FolderOrStream,
        Setting(
            "The folder of `ctr serve --feedback-log`, or its URL: `redis://…?stream=NAME`.",
            metavar="LOG",
            argument=True,
        ),
    ]
    out: Annotated[
        FolderOrStream,
        Setting(
            "Folder for the rows, as JSON lines; or a stream: `redis://…?stream=NAME`.", metavar="DIR|URL"
        ),
    ]
    window: Annotated[
        Duration,
        duration("A click counts until this long after its row was served: 30m, 1h.", default="30m"),
    ] = 1_800.0
    label: Annotated[str, Setting("The column that says whether the row was clicked.", metavar="NAME")] = (
        "click"
    )
    grace: Annotated[
        Duration,
        duration(
            "How far the clocks of servers may differ, and how long an event may take to reach the log.",
            default="10s",
        ),
    ] = 10.0
    follow: Annotated[bool, Setting("Streams: go on until Ctrl-C or SIGTERM.")] = False
    late: Annotated[
        Literal["wait", "importance"] | None,
        Setting(
            "Streams: write a row when its window has ended (wait); or at once as not clicked, and again as "
            "clicked when its click arrives, for training to weight them (importance). Default: importance "
            "with {follow}, else wait."
        ),
    ] = None
    chunk: Annotated[int, Field(ge=1), Setting("Streams: rows in a chunk.", metavar="ROWS")] = 4_096
    chunk_time: Annotated[
        Duration, duration("Streams: the longest that a chunk waits for rows.", default="0.5s")
    ] = 0.5

    @property
    def is_stream(self) -> bool:
        """Whether streams are joined, not folders."""
        from ctr.stream import is_stream

        return is_stream(self.log)

    @property
    def join_settings(self) -> JoinSettings:
        """The settings for `join` and `join_stream`."""
        from ctr.stream import JoinSettings

        return JoinSettings(
            window_s=self.window,
            label=self.label,
            grace_s=self.grace,
            late=self.late or ("importance" if self.follow else "wait"),
            chunk_rows=self.chunk,
            chunk_s=self.chunk_time,
        )

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        from ctr.stream import is_stream

        if self.is_stream != is_stream(self.out):
            raise SettingError(
                f"a folder is joined to a folder, and a stream to a stream: change LOG or {named('out')}."
            )
        for name in ("follow", "late", "chunk", "chunk_time"):
            if name in self.model_fields_set and not self.is_stream:
                raise SettingError(f"{named(name)} is for streams in Redis; leave it out.")
        return self
