"""What the commands share."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eigenshot.errors import UserError, reason_of
from eigenshot.files import as_unicode

if TYPE_CHECKING:
    from eigenshot.reporter import Reporter

RunArgument = Annotated[Path, typer.Argument(help="A run's folder or an encoder file.")]

BackboneOption = Annotated[
    str | None, typer.Option(help="Your own package.module:Factory, if trained with one.")
]

DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]

PrecisionOption = Annotated[
    str,
    typer.Option(help="Of the network's work: auto (bf16 where a GPU computes in it) or float32."),
]

CropsOption = Annotated[
    str | None,
    typer.Option(
        help="Of every image: whole, five (corners and centre) or ten (and mirrored); their "
        "features are averaged. By default the encoder's own: whole."
    ),
]

DATA_HELP = (
    "A folder of images, a benchmark (see 'eigenshot data list'), a folder or file of parquet "
    "shards, a hub repository owner/name, or an .npz file."
)


def find_own_code(*names: str | None) -> None:
    """Let ``package.module:Name`` be found beside the user; what is installed still comes first."""
    if any(name is not None and ":" in name for name in names):
        sys.path.append(os.getcwd())


@contextlib.contextmanager
def reporting(speaks: bool = True) -> Iterator[Reporter]:
    """Who tells a person how far the work is, and takes its bars away when that breaks off."""
    from rich.console import Console

    from eigenshot.reporter import ConsoleReporter, Reporter

    with ConsoleReporter(Console(stderr=True)) if speaks else Reporter() as reporter:
        yield reporter


@contextlib.contextmanager
def together(device: str) -> Iterator[bool]:
    """Work with the other processes that torchrun or srun have started; one of them speaks."""
    from eigenshot.training.launch import launch, parting
    from eigenshot.training.starter import processes

    devices, nodes = processes(1, 1, os.environ)
    if devices * nodes == 1:
        yield True
        return
    from eigenshot.hardware import choose_device

    fabric = launch(choose_device(device), devices, nodes)
    with parting(fabric):
        yield fabric.is_global_zero


@contextlib.contextmanager
def telling_of_an_interruption() -> Iterator[None]:
    """Say so where Ctrl-C ends a command; of several processes the first one does."""
    try:
        yield
    except KeyboardInterrupt as error:
        from eigenshot.training.starter import own_name

        if not own_name(os.environ):
            typer.echo("interrupted before the end; no file is left half-written", err=True)
        raise typer.Exit(130) from error


def say(text: str) -> None:
    """Print what a command was asked for; where that cannot be written, end with exit code 1."""
    try:
        typer.echo(as_unicode(text))  # names of files and classes may be of any bytes
    except BrokenPipeError:  # whoever read it has seen enough, as 'head' has
        raise
    except OSError as error:
        typer.echo(f"error: cannot write the output: {reason_of(error)}", err=True)
        raise typer.Exit(1) from error


def refuse_several(command: str) -> None:
    """Refuse a command that torchrun or srun have started several times."""
    from eigenshot.training.starter import processes

    devices, nodes = processes(1, 1, os.environ)
    if devices * nodes > 1:
        raise UserError(
            f"'{command}' is the work of one process, but {devices * nodes} were started; start it "
            "without torchrun or srun"
        )
