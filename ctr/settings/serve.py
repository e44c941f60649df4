"""`ServeJob`: the settings of a prediction server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from ctr.errors import SettingError, named
from ctr.settings.setting import Setting, Settings


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
        Setting("Folder of the trained model; one that takes its place is served then.", metavar="DIR"),
    ] = None
    registry: Annotated[
        str | None,
        Setting(
            "Serve the version that a label of this registry points to: see `ctr models`.", metavar="DIR"
        ),
    ] = None
    label: Annotated[str, Setting("With {registry}: that label.", metavar="LABEL")] = "stable"
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

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if (self.model is None) == (self.registry is None):
            raise SettingError(
                f"give the folder of a model with {named('model')}, or a registry with {named('registry')}."
            )
        if self.registry is None and self.canary:
            raise SettingError(
                f"{named('canary')} is a share for a version of a registry: give {named('registry')}."
            )
        if self.tls_key is not None and self.tls_cert is None:
            raise SettingError(f"{named('tls_key')} belongs to a certificate: give {named('tls_cert')}.")
        return self
