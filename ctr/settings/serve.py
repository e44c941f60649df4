"""`ServeJob`: the settings of a prediction server."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from ctr.errors import SettingError, named
from ctr.settings.setting import Setting, Settings
from ctr.settings.shared import Duration, FolderOrStream, duration

_limit = partial(Setting, group="Limits")
_LABEL, _FEEDBACK_KEEP_S = "stable", 7_200.0
_REQUEST_LIMITS = ("rows", "body_bytes", "arrow_bytes", "body_s", "large_bodies")


def _share(value: object) -> object:
    """Of `5%` or `0.05`."""
    if not isinstance(value, str):
        return value
    try:
        share = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ValueError(f"{value!r} is no share of the requests: give one such as 5%")
    return share


class ServeJob(Settings):
    """What is served, where, and to whom. Each can also be given in the environment, as `CTR_SERVE_NAME`."""

    environment: ClassVar[str] = "CTR_SERVE_"

    model: Annotated[
        Path | None,
        Setting(
            "Folder of the trained model; one that takes its place is served then. Or one of MLflow: "
            "`models:/name@alias`.",
            metavar="DIR",
        ),
    ] = None
    registry: Annotated[
        str | None,
        Setting(
            "Serve the version that a label of this registry points to: see `ctr models`.", metavar="DIR"
        ),
    ] = None
    store: Annotated[
        str | None,
        Setting(
            "Serve what a job trains in Redis, as it is trained: `redis://host:port/0?model=NAME`, `rediss://`,"
            " `redis+cluster://`. With {model} or {registry} besides: those until a job is found.",
            metavar="URL",
        ),
    ] = None
    max_age: Annotated[
        Duration | None,
        duration(
            "With {store}: `/readyz` answers 503 when weights are older, such as 30s. Default: no limit."
        ),
    ] = None
    label: Annotated[str, Setting("With {registry}: that label.", metavar="LABEL")] = _LABEL
    canary: Annotated[
        float,
        BeforeValidator(_share),
        Setting(
            "With {registry}: the version labelled canary, if there is one, gets this share of the requests, "
            "such as 5%.",
            metavar="SHARE",
            kind=str,
            default="0%",
        ),
    ] = 0.0
    shadow: Annotated[
        float,
        BeforeValidator(_share),
        Setting(
            "With {registry}: the version labelled shadow, if there is one, predicts this share of the "
            "requests, too; `/metrics` shows how it differs.",
            metavar="SHARE",
            kind=str,
            default="0%",
        ),
    ] = 0.0
    host: Annotated[str, Setting("Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535), Setting("Port; 0 picks a free one.")] = 8000
    socket: Annotated[
        Path | None, Setting("Listen on a Unix socket of this path instead.", metavar="PATH")
    ] = None
    workers: Annotated[
        int, Field(ge=1, le=256), Setting("Processes that answer requests, such as one for each core.")
    ] = 1
    windows: Annotated[
        str | None,
        Setting(
            "Keep what the model's windows know in Redis, for all servers with this URL, instead of in "
            "memory: `redis://host:port/0?model=NAME`, `rediss://`, `redis+cluster://`.",
            metavar="URL",
        ),
    ] = None
    unknown_fields: Annotated[
        Literal["refuse", "ignore", "count"],
        Setting(
            "Values whose field the model does not know: refuse the request, ignore them, or ignore them and "
            "count them in `/metrics`."
        ),
    ] = "refuse"
    feedback_log: Annotated[
        FolderOrStream | None,
        BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value),
        Setting(
            "Keep rows that are served, if their request has `log: true`, and the clicks that come back to "
            "`/v1/feedback`, in this folder, or in a stream in Redis: `redis://host:port/0?stream=NAME`. "
            "`ctr join` makes training data of them.",
            metavar="DIR|URL",
        ),
    ] = None
    feedback_keep: Annotated[
        Duration,
        Setting(
            "With {feedback_log} in Redis: how long rows and clicks stay there; more than the window of `ctr "
            "join`, and as long as that may be down.",
            metavar="TIME",
            kind=str,
            default="2h",
        ),
    ] = _FEEDBACK_KEEP_S
    log_impressions: Annotated[
        float,
        BeforeValidator(_share),
        Setting(
            "With {feedback_log}: also keep this share of the requests that do not say, such as 100%.",
            metavar="SHARE",
            kind=str,
            default="0%",
        ),
    ] = 0.0
    tls_cert: Annotated[
        Path | None,
        Setting("Speak TLS, with the certificates in this PEM file.", group="Safety", metavar="FILE"),
    ] = None
    tls_key: Annotated[
        Path | None,
        Setting("Its private key; default: in the same file.", group="Safety", metavar="FILE"),
    ] = None
    tokens_file: Annotated[
        Path | None,
        Setting(
            "Answer only requests with `Authorization: Bearer TOKEN`, of the tokens in this file, one a "
            "line, or in CTR_SERVE_TOKENS. A changed file is read anew.",
            group="Safety",
            metavar="FILE",
        ),
    ] = None
    admin_tokens_file: Annotated[
        Path | None,
        Setting(
            "The same for changing labels, and for the paths of inputs in `/v1/model`; or in "
            "CTR_SERVE_ADMIN_TOKENS.",
            group="Safety",
            metavar="FILE",
        ),
    ] = None
    access_log: Annotated[
        Path | None,
        Setting(
            "Write a line of JSON for each request to this file, or - for standard error.", metavar="FILE"
        ),
    ] = None

    limit_rows: Annotated[int, Field(ge=1, le=1_000_000), _limit("Rows in one request.")] = 10_000
    limit_body_bytes: Annotated[
        int, Field(ge=1_024, le=1 << 30), _limit("Bytes of one request, decompressed.")
    ] = 2 << 20
    limit_arrow_bytes: Annotated[
        int, Field(ge=1_024, le=1 << 30), _limit("Bytes of one request in the Arrow format.")
    ] = 8 << 20
    limit_body_s: Annotated[
        float, Field(gt=0), _limit("Seconds that a request's body may take to arrive.", kind=float)
    ] = 8.0
    limit_large_bodies: Annotated[
        int, Field(ge=1), _limit("Requests of more than 64 KiB in memory at a time; others wait.")
    ] = 16
    limit_connections: Annotated[
        int, Field(ge=1, le=100_000), _limit("Connections of one process; others are told to try again.")
    ] = 1_000
    drain_s: Annotated[
        float,
        Field(gt=0),
        _limit("Seconds that requests under way may take to end when the server stops.", kind=float),
    ] = 10.0

    @property
    def limits(self) -> dict[str, Any]:
        """By field, the values for `ctr.api.requests.Limits`."""
        return {name: getattr(self, f"limit_{name}") for name in _REQUEST_LIMITS}

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        given = [self.model, self.registry, self.store]
        if given.count(None) == 3 or None not in (self.model, self.registry):
            raise SettingError(
                f"give one: the folder of a model with {named('model')}, a registry with {named('registry')} "
                f"or the store of a job with {named('store')}; with a store also one of the others, to be "
                "served until a job is found."
            )
        if self.max_age is not None and self.store is None:
            raise SettingError(f"{named('max_age')} is for weights that change: give {named('store')}.")
        for name in ("canary", "shadow"):
            if (self.registry is None or self.store is not None) and getattr(self, name):
                raise SettingError(
                    f"{named(name)} is a share for a version of a registry: give {named('registry')}, and no "
                    f"{named('store')}."
                )
            if getattr(self, name) and self.label == name:
                raise SettingError(
                    f"{named(name)} is a share beside another label, and {named('label')} is {name}: give one"
                    " of them."
                )
        if self.registry is None and self.label != _LABEL:
            raise SettingError(f"{named('label')} is for versions of a registry: give {named('registry')}.")
        if self.feedback_keep != _FEEDBACK_KEEP_S and "://" not in str(self.feedback_log):
            raise SettingError(
                f"{named('feedback_keep')} is for a log in Redis; files stay until they are removed: give"
                f" {named('feedback_log')} redis://…, or leave it out."
            )
        if self.tokens_file is not None and self.tokens_file == self.admin_tokens_file:
            raise SettingError(
                f"{named('tokens_file')} and {named('admin_tokens_file')} are the same file, so every token"
                " would be an administrator's: give two."
            )
        if self.limit_body_s >= self.drain_s:
            raise SettingError(
                f"{named('limit_body_s')} is {self.limit_body_s:g}: a server that stops would not wait for "
                f"bodies that may still arrive; give {named('drain_s')} more."
            )
        if self.log_impressions and self.feedback_log is None:
            raise SettingError(f"{named('log_impressions')} needs a folder: give {named('feedback_log')}.")
        if self.tls_key is not None and self.tls_cert is None:
            raise SettingError(f"{named('tls_key')} belongs to a certificate: give {named('tls_cert')}.")
        return self
