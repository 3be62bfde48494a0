"""The command ``classify``: parse, call, print."""

from __future__ import annotations

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
)
from eigenshot.errors import UserError
from eigenshot.files import why_not_writable


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
    out: Annotated[Path | None, typer.Option(help="Write a row an image to this CSV file.")] = None,
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
    for file in (file for file in (out, save) if file is not None):
        if not file.parent.is_dir():
            raise UserError(f"no such folder: '{file.parent}'")
        if file.is_dir():
            raise UserError(f"expected a file to write, found a folder: '{file}'")
        if reason := why_not_writable(file.parent):
            raise UserError(f"cannot write to '{file}': {reason}")
        _refuse_to_overwrite(file, run or classifier, [support, *query, *given])
    if out is not None and save is not None and out.resolve() == save.resolve():
        raise UserError(f"--out and --save name the same file, '{out}': give each its own")

    from json import dumps

    from eigenshot.encoder import load_encoder
    from eigenshot.evaluation.classifier_file import load_classifier
    from eigenshot.evaluation.classify import classify as classify_images

    find_own_code(backbone)
    with reporting() as reporter:
        report = classify_images(
            load_encoder(run, backbone=backbone).with_crops(crops)  # type: ignore[arg-type]
            if run is not None
            else load_classifier(str(classifier), backbone=backbone),
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
        typer.echo(dumps(report.to_dict()))
        return
    if out is None:
        for row in report.predictions:
            best = "" if row.unlike else f"  {max(row.probabilities):.0%}"
            # A file name may hold bytes that a terminal cannot show.
            name = row.file.encode("utf-8", "backslashreplace").decode()
            typer.echo(f"{name}  {row.prediction}{best}")
    typer.echo(report.summary())


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
    holds = target.exists() and target.suffix.lower() in (*EXTENSIONS, ".parquet", ".npz")
    if target in (*given, *own) or (holds and any(p in target.parents for p in given)):
        raise UserError(f"'{file}' is one of the files that are read here: write to another")
