"""The command ``classify``: parse, call, print."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from eigenshot.cli_common import (
    BackboneOption,
    CropsOption,
    DeviceOption,
    find_own_code,
    refuse_several,
    reporting,
    say,
    telling_of_an_interruption,
)
from eigenshot.errors import CorruptFileError, UserError
from eigenshot.files import make_room_for, refuse_to_replace

# How the first line of a table of predictions begins and ends; a column more is somebody's own.
_HEADER = (b"file,prediction,", b",likeness,none_of_these,unreadable")


@telling_of_an_interruption()
def classify(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN] [MORE QUERIES]...",
            help="A run's folder or an encoder file; further paths count as queries, "
            "so that --query *.jpg works.",
            show_default=False,
        ),
    ] = None,
    query: Annotated[
        list[Path] | None,
        typer.Option(help="Folder or image file to classify; repeatable.", show_default=False),
    ] = None,
    support: Annotated[
        Path | None,
        typer.Option(help="Folder with a sub-folder of examples for each class."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write a row an image to this CSV file; an older table of predictions is replaced."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Keep the fitted classifier, with its encoder, in this file."),
    ] = None,
    classifier: Annotated[
        Path | None, typer.Option(help="Use a kept classifier instead of RUN and --support.")
    ] = None,
    reject: Annotated[
        float | None,
        typer.Option(
            help="Tolerated false alarms of 'none of these', 0.05 by default; 0 never says so.",
            min=0.0,
            max=0.5,
        ),
    ] = None,
    C: Annotated[
        float | None, typer.Option("-C", "--C", help="Inverse L2 strength; 1 by default.")
    ] = None,
    backbone: BackboneOption = None,
    crops: CropsOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: DeviceOption = "auto",
) -> None:
    """Classify your own images from a few examples of each class."""
    refuse_several("classify")
    given = list(paths or [])
    if classifier is None and not given:
        raise UserError("expected a run's folder, or --classifier FILE, found neither")
    run = None if classifier is not None else given.pop(0)
    if classifier is None and support is None:
        raise UserError("expected --support, a folder with a sub-folder a class, found none")
    if classifier is not None and not (support is None and C is None and crops is None):
        raise UserError(
            "a kept classifier has its support, its C and its crops: leave out --support, --C and "
            "--crops, or leave out --classifier"
        )
    if not query:
        raise UserError("expected --query, a folder or image files to classify, found none")
    if classifier is not None:
        _refuse_run(given)
    out, save = (file and file.expanduser() for file in (out, save))
    written = [file for file in (out, save) if file is not None]
    for file in written:
        if os.path.isdir(file):  # unlike Path's own, no error where it may not be looked at
            raise UserError(f"expected a file to write, found a folder: '{file}'")
        _refuse_to_overwrite(file, run or classifier, [support, *query, *given])
    if out is not None and save is not None and out.resolve() == save.resolve():
        raise UserError(f"--out and --save name the same file, '{out}': give each its own")
    if out is not None and os.path.exists(out):
        refuse_to_replace(out, "no table of predictions", _holds_predictions)
    if save is not None and os.path.exists(save):
        _check_is_classifier(save)

    from json import dumps

    from eigenshot.encoder import load_encoder
    from eigenshot.evaluation import classify as classifying
    from eigenshot.evaluation.classifier_file import load_classifier

    find_own_code(backbone)
    model = (
        load_encoder(run, backbone=backbone).with_crops(crops)  # type: ignore[arg-type]
        if run is not None
        else load_classifier(str(classifier), backbone=backbone)
    )
    for file in written:  # before the work: its result must have a place
        if reason := make_room_for(file):
            raise UserError(f"cannot write to '{file}': {reason}")
    with reporting() as reporter:
        report = classifying.classify(
            model,
            support,
            [*query, *given],
            C=C,
            reject=reject,
            device=device,
            reporter=reporter,
        )
        for warning in report.warnings():
            reporter.warn(warning)
        if out is not None:
            report.write_csv(out)
            reporter.note(f"{len(report.predictions)} predictions in {out}")
        if save is not None:
            report.classifier.save(save)
            reporter.note(f"classifier and encoder in {save} ({save.stat().st_size / 1e6:.1f} MB)")
    if json:
        say(dumps(report.to_dict()))
        return
    if out is None:
        for row in report.predictions:
            best = "" if row.unlike else f"  {max(row.probabilities):.0%}"
            say(f"{row.file}  {row.prediction}{best}")
    say(report.summary())


def _refuse_run(queries: list[Path]) -> None:
    """A run beside a kept classifier would be taken for images to classify."""
    from eigenshot.training.runfolder import RunFolder

    for place in queries:
        run = RunFolder(place)
        is_run = run.encoder_file.is_file() or run.config_file.is_file()
        if is_run or place.suffix.lower() == ".safetensors":
            raise UserError(
                f"RUN ('{place}') and --classifier exclude each other: a kept classifier brings "
                "its encoder along; leave one of them out"
            )


def _holds_predictions(file: Path) -> bool:
    """Whether a file is a table of predictions as it was written, without a column of one's own."""
    with file.open("rb") as handle:
        first = handle.readline().rstrip(b"\r\n")
    begins, ends = _HEADER
    return first.startswith(begins) and first.endswith(ends)


def _check_is_classifier(file: Path) -> None:
    """A kept classifier may be replaced by the next one; nothing else may."""
    from eigenshot.evaluation.classifier_file import FORMAT
    from eigenshot.tensorfile import read_tensors

    try:
        read_tensors(file, kind=FORMAT)
    except CorruptFileError as error:
        raise UserError(
            f"'{file}' is there already and no kept classifier: remove it first, or write to "
            "another"
        ) from error


def _refuse_to_overwrite(file: Path, model: Path | None, pictures: list[Path | None]) -> None:
    """Keep what is read from being written over: a run, a kept classifier, pictures."""
    from eigenshot.data.tables.folder_table import EXTENSIONS
    from eigenshot.training.runfolder import RunFolder

    target = file.expanduser().resolve()
    given = [place.expanduser().resolve() for place in (model, *pictures) if place is not None]
    own: list[Path] = []
    if model is not None:
        run = RunFolder(model if model.expanduser().is_dir() else model.parent)
        own = [part.resolve() for part in run.files]
    holds = os.path.exists(target) and target.suffix.lower() in (*EXTENSIONS, ".parquet", ".npz")
    if target in (*given, *own) or (holds and any(p in target.parents for p in given)):
        raise UserError(f"'{file}' is one of the files that are read here: write to another")
