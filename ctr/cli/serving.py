"""`ctr serve`."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from ctr.errors import SettingError


def _share(text: str) -> float:
    """Of `5%` or `0.05`."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise SettingError(f"--canary {text} is no share of the requests: give one such as 5%.")
    return share


def serve(
    model: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the trained model; one that takes its place is served."),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            envvar="CTR_REGISTRY",
            help="Serve the version that a label of this registry points to.",
        ),
    ] = None,
    label: Annotated[str, typer.Option(metavar="LABEL", help="With --registry: that label.")] = "stable",
    canary: Annotated[
        str,
        typer.Option(
            metavar="SHARE",
            help="With --registry: the version labelled canary, if there is one, gets this share of the "
            "requests, such as 5%.",
        ),
    ] = "0%",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8000,
    workers: Annotated[
        int,
        typer.Option(min=1, max=256, help="Processes that answer requests, such as one for each core."),
    ] = 1,
    windows: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Keep what the model's windows know in Redis, for all servers with this URL, instead of in "
            "memory: `redis://host:port/0?model=NAME`, `rediss://`, `redis+cluster://`.",
        ),
    ] = None,
) -> None:
    """Serve a model over HTTP until Ctrl-C or SIGTERM; closing the terminal (SIGHUP) does not stop it.

    `POST /v1/predict` with `{"rows": [{"I1": 5, "C1": "68fd1e64"}]}` returns one probability per row;
    a column that is left out counts as missing. A request may have up to 10,000 rows and 2 MiB. `GET /docs`
    shows every endpoint.

    Another model in the folder, or another version under the label, is served within two seconds, once it has
    been loaded and tried; one that fails is not, and the one before stays. Requests are dealt to `--canary`
    by the hash of their header `ctr-request-key`. `GET /v1/models` tells what is served.

    Events for a model with windows go to `/v1/events/impressions` and `/v1/events/clicks`. With `--windows`,
    several servers share them, and they outlive a server; the first one writes what its model knows. User and
    password are in the URL, or in CTR_REDIS_USER and CTR_REDIS_PASSWORD.

    Examples:

    - `ctr serve --model model --port 8000`
    - `ctr serve --registry models --label stable --canary 5%`
    """
    if (model is None) == (registry is None):
        raise SettingError("give the folder of a model with --model, or a registry with --registry.")
    share = _share(canary)
    if registry is None and share:
        raise SettingError("--canary is a share for a version of a registry: give --registry.")
    with TemporaryDirectory(prefix="ctr-serve-") as counts:
        if workers > 1:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = counts  # before the library is imported
        from ctr.api import CANARY, FolderSource, RegistrySource
        from ctr.api import serve as run

        labels = [label, CANARY] if share and label != CANARY else [label]
        source = FolderSource(model) if model is not None else RegistrySource(str(registry), labels)
        try:
            run(source, host, port, share=share, windows=windows, workers=workers)
        finally:
            os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
