"""The command line: parse, call, print."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from eigenshot.cli_classify import classify
from eigenshot.cli_common import DATA_HELP, DeviceOption, find_own_code, refuse_several
from eigenshot.cli_data import data_app
from eigenshot.cli_embed import embed_command
from eigenshot.cli_evaluate import evaluate
from eigenshot.cli_reproduce import reproduce
from eigenshot.errors import ProcessLost, TrainingDiverged, UserError

app = typer.Typer(
    name="eigenshot",
    help="Learn an encoder from unlabelled images; classify from one to five examples a class.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(evaluate, name="evaluate")
app.add_typer(data_app, name="data")
app.command("classify")(classify)
app.command("embed")(embed_command)
app.command("reproduce")(reproduce)

_stderr = Console(stderr=True)

# What is wrong is wrong for all processes of a run, and the first one says so. The launcher then
# ends the others: one that is still there after this many seconds has a trouble of its own. On a
# busy machine the first may come to it some seconds after them.
_SILENT_SECONDS = 10.0


def _show_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"eigenshot {version('eigenshot')}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options that stand before a command."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for demo.json and demo.png.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0,
    device: DeviceOption = "auto",
) -> None:
    """The whole story on embedded data: learn from unlabelled characters, read unseen ones."""
    from eigenshot.demo import run_demo

    refuse_several("demo")
    result = run_demo(out, seed=seed, device=device, console=_stderr)
    typer.echo(result.table())
    typer.echo(f"\n{result.seconds:.0f} s; see {out / 'demo.png'} and {out / 'demo.json'}")


@contextlib.contextmanager
def _telling_how_to_go_on() -> Iterator[None]:
    """Say so where Ctrl-C ends the work at once, as it does while a run is prepared."""
    try:
        yield
    except KeyboardInterrupt:
        _stop(
            "interrupted, and nothing that was saved is lost; the same command with --resume goes "
            "on from the last checkpoint, or starts anew where there is none",
            130,
            False,
        )


@app.command()
@_telling_how_to_go_on()
def pretrain(
    data: Annotated[str, typer.Argument(help=DATA_HELP)],
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Settings by name or TOML file. By default the benchmark's own (glyphs, fc100, "
            "cifar-fs, miniimagenet, cub, cifar10, cifar100, stl10), else folder; also "
            "fc100-best, miniimagenet-best, miniimagenet-wrn, cifar10-best, cifar100-best, "
            "stl10-best."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="What is minimised: dle (the paper's), simclr, mocov2, byol, barlow-twins, "
            "simsiam, w-mse, shuffled-dbn, swav, vicreg, spectral-contrastive; with labels "
            "baseline, baseline++; or your own package.module:Class."
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="The network: conv4, resnet12, resnet18, resnet18_imagenet, wrn28_10, "
            "or your own package.module:Factory."
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the images.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Images a step, of all processes together.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in OUT.")
    ] = False,
    init: Annotated[
        Path | None, typer.Option(help="Start from this encoder file or state dict.")
    ] = None,
    lengthen: Annotated[
        Path | None,
        typer.Option(
            help="Go on from a run of fewer --epochs, whose optimizer.schedule is trapezoid, as if "
            "it had been asked for as many; its folder stays as it is."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override any field of the recipe."),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also log for TensorBoard.")
    ] = False,
    device: DeviceOption = "auto",
    devices: Annotated[
        int, typer.Option(help="Processes a machine, each with a device of its own.")
    ] = 1,
    nodes: Annotated[int, typer.Option(help="Machines.")] = 1,
    compile: Annotated[
        str | None,
        typer.Option(help="Compile the network: auto (if the run is long enough), on or off."),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Of the network's work: auto (bf16 where the GPU has it), float32 or bf16."
        ),
    ] = None,
) -> None:
    """Learn an encoder from unlabelled images."""
    from eigenshot.configfile import parse_override
    from eigenshot.reporter import ConsoleReporter, duration
    from eigenshot.training.lengthen import settings_for
    from eigenshot.training.pretrain import pretrain as run_pretraining

    given: dict[str, Any] = {
        "method.name": method,
        "backbone.name": backbone,
        "training.epochs": epochs,
        "training.batch_size": batch_size,
        "training.seed": seed,
        "logging.tensorboard": tensorboard or None,
        "engine.compile": compile,
        "engine.precision": precision,
    }
    overrides = {key: value for key, value in given.items() if value is not None}
    asked = dict(map(parse_override, settings or []))
    for key in overrides.keys() & asked.keys():
        if overrides[key] != asked[key]:
            raise UserError(
                f"{key} is asked to be both {overrides[key]!r} and {asked[key]!r}; leave one of "
                "them out"
            )
    overrides.update(asked)
    begun = out if resume else None
    config = settings_for(data, overrides, recipe=recipe, lengthen=lengthen, begun=begun)
    find_own_code(config.method.name, config.backbone.name)
    run = run_pretraining(
        data,
        config,
        out,
        resume=resume,
        initial=init,
        lengthen=lengthen,
        device=device,
        devices=devices,
        nodes=nodes,
        reporter=ConsoleReporter(_stderr, config.training.epochs),
    )
    if run.rank > 0:
        return
    seconds = duration(run.summary["seconds"])
    typer.echo(f"encoder in {out} after {seconds} ({run.summary['images_per_second']:,} images/s)")


def main() -> NoReturn:
    """Run the command line; people get sentences, not tracebacks."""
    debug = "--debug" in sys.argv
    try:
        app(standalone_mode=True)
    except UserError as error:
        _stop(str(error), 2, debug)
    except TrainingDiverged as error:
        _stop(f"training diverged: {error}", 1, debug)
    except ProcessLost as error:
        _stop(str(error), 1, debug)
    except Exception as error:
        from eigenshot.training.loop import Interrupted

        if isinstance(error, Interrupted):
            _stop(str(error), 130, False)
        from eigenshot.hardware import is_out_of_memory

        if is_out_of_memory(error):
            _stop(
                "there is not enough memory for this; smaller images, views or batches take less "
                "(--debug shows where)",
                2,
                debug,
            )
        _stop(f"{type(error).__name__}: {error} (--debug shows where)", 1, debug)
    sys.exit(0)


def _stop(message: str, code: int, debug: bool) -> NoReturn:
    """End with a message; inside an except block ``debug`` lets the traceback through."""
    if debug:
        raise
    text = f"error: {message}" if code != 130 else message
    if name := _own_name():
        if code == 130:
            sys.exit(code)
        time.sleep(_SILENT_SECONDS)
        text = f"{name}: {text}"
    _stderr.print(text, markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)


def _own_name() -> str:
    """What to call this process; empty for the first of those that were started together."""
    from eigenshot.training.starter import own_name

    try:
        return own_name(os.environ)
    except UserError:  # a variable that is no number, which has an error of its own
        return ""
