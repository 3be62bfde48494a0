"""``eigenshot evaluate``: the protocols, each a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from eigenshot.errors import UserError

if TYPE_CHECKING:
    from eigenshot.evaluation.bench import Bench
    from eigenshot.reporter import Reporter

evaluate = typer.Typer(no_args_is_help=True, help="Measure an encoder on labelled images.")

NormaliseOption = Annotated[
    str, typer.Option(help="Channel mean and deviation: of the encoder, or of the data itself.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TrainOption = Annotated[str, typer.Option(help="Labelled images to learn from.")]
TestOption = Annotated[str, typer.Option(help="Labelled images of the same classes to test on.")]


def _bench(
    run: Path,
    device: str,
    precision: str,
    backbone: str | None,
    normalise: str,
    crops: str | None,
    reporter: Reporter,
) -> Bench:
    from eigenshot.evaluation.bench import Bench

    find_own_code(backbone)
    return Bench(run, device, backbone, normalise, reporter, precision, crops)  # type: ignore[arg-type]


def _refuse_idle(context: typer.Context, names: tuple[str, ...], reason: str) -> None:
    """Refuse an option that was given and would do nothing."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UserError(f"--{name} would do nothing here: {reason}; leave it out")


@evaluate.command("fewshot")
@telling_of_an_interruption()
def fewshot(
    context: typer.Context,
    run: RunArgument,
    data: Annotated[str, typer.Option(help=f"Labelled images. {DATA_HELP}")],
    split: Annotated[
        str | None, typer.Option(help="Of a benchmark or shards; test by default.")
    ] = None,
    ways: Annotated[int, typer.Option(help="Classes a task.")] = 5,
    shots: Annotated[
        list[int] | None, typer.Option(help="Examples a class; repeatable. 1 and 5 by default.")
    ] = None,
    queries: Annotated[int, typer.Option(help="Queries a class.")] = 15,
    episodes: Annotated[int, typer.Option(help="Tasks.")] = 10_000,
    classifier: Annotated[
        str,
        typer.Option(
            help="logistic, ridge, nearest-centroid, cosine; or, transductive: "
            "optimal-transport, laplacian-shot."
        ),
    ] = "logistic",
    C: Annotated[float, typer.Option("-C", "--C", help="Inverse L2 strength.")] = 1.0,
    transform: Annotated[
        str, typer.Option(help="Of the features: none, l2, power or centre (with --base).")
    ] = "l2",
    base: Annotated[
        str | None, typer.Option(help="The training images, whose mean 'centre' takes away.")
    ] = None,
    support_views: Annotated[
        int, typer.Option(help="Random views of each example that join it.")
    ] = 0,
    select_on: Annotated[
        str | None, typer.Option(help="Choose C and transform on these validation images.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Another run, to compare on the same tasks.")
    ] = None,
    interval: Annotated[str, typer.Option(help="Of the mean: normal or student.")] = "normal",
    seed: Annotated[int, typer.Option(help="Seed of the tasks.")] = 0,
    backbone: BackboneOption = None,
    normalise: NormaliseOption = "encoder",
    crops: CropsOption = None,
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
) -> None:
    """Few-shot accuracy with its 95 % interval, on frozen features."""
    from eigenshot.evaluation.classifiers import get_classifier
    from eigenshot.evaluation.fewshot import paired_difference
    from eigenshot.evaluation.protocol import fewshot_of_run

    if not get_classifier(classifier, {})[0].has_strength:
        _refuse_idle(context, ("C",), f"'{classifier}' has none")
    if select_on is not None:
        _refuse_idle(context, ("C", "transform"), "--select-on chooses it")
    elif transform != "centre":
        _refuse_idle(context, ("base",), "it is for --transform centre and --select-on")
    settings: dict[str, Any] = {
        "split": split,
        "ways": ways,
        "shots": tuple(shots or (1, 5)),
        "queries": queries,
        "episodes": episodes,
        "C": C,
        "seed": seed,
        "classifier": classifier,
        "transform": transform,
        "base": base,
        "support_views": support_views,
        "select_on": select_on,
        "interval": interval,
    }
    differences: dict[int, tuple[float, float]] = {}
    with together(device) as speaks, reporting(speaks) as reporter:
        how = (device, precision, backbone, normalise, crops, reporter)
        bench = _bench(run, *how)
        other_bench = None if against is None else _bench(against, *how)
        results = fewshot_of_run(bench, data, **settings)
        if other_bench is not None:
            compared = fewshot_of_run(other_bench, data, **settings)
            for (result, _), (other, _) in zip(results, compared, strict=True):
                differences[result.shots] = paired_difference(result, other, interval)  # type: ignore[arg-type]
    if not speaks:
        return
    looked_at = bench.encoder.preprocessing.crops
    if as_json:
        record: dict[str, Any] = {str(result.shots): result.summary() for result, _ in results}
        record |= {"classifier": classifier, "transductive": results[0][0].transductive}
        record["protocol"] = {
            **{name: value for name, value in settings.items() if name != "shots"},
            "data": data,
            "normalise": normalise,
            "crops": looked_at,
        }
        record["selected"] = {
            str(result.shots): chosen.summary() for result, chosen in results if chosen
        }
        record["against"] = {
            str(count): {"difference": round(mean, 4), "ci95": round(width, 4)}
            for count, (mean, width) in differences.items()
        }
        say(json.dumps(record))
        return
    cropped = "" if looked_at == "whole" else f", {looked_at} crops"
    for result, chosen in results:
        chance = f"guessing gives {100 / result.ways:.0f} %"
        name = f"{result.ways}-way {result.shots}-shot, {classifier}{cropped}"
        say(f"{name}  {result}  ({episodes:,} episodes; {chance})")
        if chosen:
            say(
                f"  with C={chosen.C:g} and transform '{chosen.transform}', "
                f"chosen on validation classes ({chosen.accuracy:.2f} % there)"
            )
        if result.shots in differences:
            mean, width = differences[result.shots]
            say(f"  {mean:+.2f} ± {width:.2f} against {against} on the same tasks")


@evaluate.command("linear")
@telling_of_an_interruption()
def linear(
    context: typer.Context,
    run: RunArgument,
    train: TrainOption,
    test: TestOption,
    exact: Annotated[
        bool, typer.Option("--exact", help="The regularised optimum instead of the paper's SGD.")
    ] = False,
    C: Annotated[float, typer.Option("-C", "--C", help="Inverse L2 strength, with --exact.")] = 1.0,
    epochs: Annotated[int, typer.Option(help="Of the SGD.")] = 100,
    lr: Annotated[float, typer.Option(help="Of the SGD; falls tenfold at 60 and 80 %.")] = 30.0,
    momentum: Annotated[float, typer.Option(help="Of the SGD; the paper leaves it open.")] = 0.9,
    seed: Annotated[int, typer.Option(help="Seed of the SGD.")] = 0,
    backbone: BackboneOption = None,
    crops: CropsOption = None,
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
) -> None:
    """Accuracy of a linear classifier on the frozen encoder, train and test of the same classes."""
    if exact:
        _refuse_idle(context, ("epochs", "lr", "momentum", "seed"), "it is of the SGD, not --exact")
    else:
        _refuse_idle(context, ("C",), "it is of --exact; the SGD has no penalty")
    from eigenshot.evaluation.protocol import linear_of_run

    with together(device) as speaks, reporting(speaks) as reporter:
        result = linear_of_run(
            _bench(run, device, precision, backbone, "encoder", crops, reporter),
            train,
            test,
            exact=exact,
            C=C,
            epochs=epochs,
            lr=lr,
            momentum=momentum,
            seed=seed,
        )
    if speaks:
        say(json.dumps(result.summary()) if as_json else f"linear evaluation  {result}")


@evaluate.command("knn")
@telling_of_an_interruption()
def knn(
    run: RunArgument,
    train: TrainOption,
    test: TestOption,
    neighbours: Annotated[
        int, typer.Option(help="Voters; all training images where there are fewer.")
    ] = 200,
    temperature: Annotated[float, typer.Option(help="Of the votes exp(cosine / T).")] = 0.1,
    backbone: BackboneOption = None,
    normalise: NormaliseOption = "encoder",
    crops: CropsOption = None,
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
) -> None:
    """Accuracy of the weighted vote of the nearest training images."""
    from eigenshot.evaluation.protocol import knn_of_run

    with together(device) as speaks, reporting(speaks) as reporter:
        result = knn_of_run(
            _bench(run, device, precision, backbone, normalise, crops, reporter),
            train,
            test,
            neighbours=neighbours,
            temperature=temperature,
        )
    if speaks:
        say(json.dumps(result.summary()) if as_json else str(result))
