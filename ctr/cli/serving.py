"""`ctr serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from ctr.settings import ModelFolder


def serve(
    model: ModelFolder,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8000,
    windows: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Keep what the model's windows know in Redis, for all servers with this URL, instead of in "
            "memory: `redis://host:port/0?model=NAME`, `rediss://`, `redis+cluster://`.",
        ),
    ] = None,
    unknown_fields: Annotated[
        Literal["refuse", "ignore", "count"],
        typer.Option(
            help="Values whose field the model does not know: refuse the request, ignore them, or ignore "
            "them and count them in `/metrics`."
        ),
    ] = "refuse",
) -> None:
    """Serve a model over HTTP until Ctrl-C or SIGTERM; closing the terminal (SIGHUP) does not stop it.

    `POST /v1/predict` with `{"rows": [{"I1": 5, "C1": "68fd1e64"}]}` returns one probability per row;
    a column that is left out counts as missing. A request may have up to 10,000 rows and 2 MiB. Rows may
    also come as columns, as candidates of one context, or as Arrow. `GET /docs` shows every endpoint.

    Events for a model with windows go to `/v1/events/impressions` and `/v1/events/clicks`. With `--windows`,
    several servers share them, and they outlive a server; the first one writes what its model knows. User and
    password are in the URL, or in CTR_REDIS_USER and CTR_REDIS_PASSWORD.

    Example: `ctr serve --model model --port 8000`
    """
    from ctr.api import serve as run

    run(model, host, port, windows=windows, unknown_fields=unknown_fields)
