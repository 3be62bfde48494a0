"""``eigenshot embed``: features to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eigenshot.cli_common import (
    DATA_HELP,
    BackboneOption,
    CropsOption,
    DeviceOption,
    PrecisionOption,
    RunArgument,
    find_own_code,
    reporting,
    say,
    telling_of_an_interruption,
    together,
)


@telling_of_an_interruption()
def embed_command(
    run: RunArgument,
    data: Annotated[str, typer.Argument(help=DATA_HELP)],
    out: Annotated[
        Path, typer.Option(help="The file to write, outside of DATA: .parquet or .npz.")
    ],
    split: Annotated[
        str | None, typer.Option(help="Of a benchmark or shards; test by default.")
    ] = None,
    backbone: BackboneOption = None,
    crops: CropsOption = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Compute anew and keep nothing in the cache.")
    ] = False,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
) -> None:
    """Write the features of images to a file, with labels and paths where they are known."""
    from eigenshot.evaluation.embed import embed

    find_own_code(backbone)
    with together(device) as speaks, reporting(speaks) as reporter:
        file = embed(
            run,
            data,
            out,
            split=split,
            backbone=backbone,
            crops=crops,  # type: ignore[arg-type]
            device=device,
            reporter=reporter,
            cache=not no_cache,
            precision=precision,  # type: ignore[arg-type]
            together=True,
        )
    if speaks:
        say(f"features in {file}")
