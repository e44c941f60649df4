"""Options that several of `ctr features` have."""

from __future__ import annotations

from typing import Annotated

import typer

SpecOption = Annotated[
    str,
    typer.Option(
        metavar="SPEC",
        help="Feature spec: a YAML file, a folder with a fitted one, or a shipped one by name (criteo, "
        "avazu, libsvm, vw).",
        show_default=False,
    ),
]
