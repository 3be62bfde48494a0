"""``eigenshot reproduce``: a table of the paper, ours beside it."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from eigenshot.cli_common import DeviceOption, find_own_code, refuse_several, say
from eigenshot.errors import UserError
from eigenshot.files import why_no_folder, write_text

if TYPE_CHECKING:
    from eigenshot.reproduction.execute import Places
    from eigenshot.reproduction.plan import Plan, PlannedRun
    from eigenshot.reproduction.session import Session

_INTERRUPTED = 130


def reproduce(
    context: typer.Context,
    table: Annotated[
        str,
        typer.Argument(
            help="table1-fc100, table1-miniimagenet, table2-cub, ablation, linear, batch-size, or "
            "the .toml file of a table of your own."
        ),
    ],
    budget: Annotated[
        float | None,
        typer.Option(help="Minutes: runs what fits, most valuable first. By default, everything."),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="For every run, for a quick look; the table says so.")
    ] = None,
    seeds: Annotated[
        list[str] | None, typer.Option(help="As 0,1,2; also repeatable. 0 by default.")
    ] = None,
    rows: Annotated[
        list[str] | None,
        typer.Option(help="Names of the rows to run, as ours,simclr; also repeatable."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a field of every recipe; the results are kept apart.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show plan and table; run and write nothing.")
    ] = False,
    results_only: Annotated[
        bool, typer.Option("--results-only", help="Run nothing; make the table from result files.")
    ] = False,
    results: Annotated[Path, typer.Option(help="Folder of result files and tables.")] = Path(
        "results"
    ),
    runs: Annotated[Path, typer.Option(help="Folder of the runs themselves.")] = Path(
        "runs/reproduce"
    ),
    lengthen: Annotated[
        bool,
        typer.Option(
            "--lengthen",
            help="Go on from shorter runs even where that does not come to the very same, which "
            "the table then says.",
        ),
    ] = False,
    side_by_side: Annotated[
        int, typer.Option(help="Runs at a time on the device, each in a process of its own.")
    ] = 1,
    device: DeviceOption = "auto",
) -> None:
    """Fill a table of the paper: run what has no result yet, and print ours beside theirs."""
    from eigenshot.configfile import parse_override
    from eigenshot.reporter import ConsoleReporter
    from eigenshot.reproduction.comparison import compare
    from eigenshot.reproduction.document import Owner, document_file, refuse_anothers
    from eigenshot.reproduction.execute import Places
    from eigenshot.reproduction.library import Library
    from eigenshot.reproduction.picture import draw_pictures
    from eigenshot.reproduction.plan import Choices, make_plan
    from eigenshot.reproduction.rendering import as_markdown, as_text
    from eigenshot.reproduction.session import Session, check_budget, check_count
    from eigenshot.reproduction.tablefile import read_table

    refuse_several("reproduce")
    if dry_run and results_only:
        raise UserError("--dry-run shows what would be run, --results-only runs nothing; take one")
    check_budget(budget)
    check_count(side_by_side)
    chosen = read_table(table)
    find_own_code(*(row.method for row in chosen.rows), *(settings or []))
    choices = Choices(
        epochs,
        _numbers(seeds) or (0,),
        tuple(_separated("--rows", rows)),
        dict(parse_override(text) for text in settings or []),
    )
    plan = make_plan(chosen, choices, given=table)
    if plan.mistakes and not results_only:  # what was measured before can be shown all the same
        raise UserError(f"table '{table}': {plan.mistakes[0]}")
    places = Places(results.expanduser(), runs.expanduser(), lengthen)
    document = document_file(places.results, chosen, choices)
    stderr = Console(stderr=True)
    reporter = ConsoleReporter(stderr)
    session = Session()
    _prepare(places, dry_run=dry_run, results_only=results_only)
    if dry_run:
        say(_described(plan, places, device, budget, side_by_side, session) + "\n")
    else:
        refuse_anothers(document, table)
        if not results_only:
            debug = context.find_root().params["debug"]
            session = _run(plan, places, device, budget, side_by_side, debug, stderr)
            if session.idle:
                reporter.note(_why_idle(plan, places))
    library = Library(places.results)
    say(as_text(compare(chosen, choices, plan, library, session.remarks)))
    pictures = []
    if not dry_run:
        owner = Owner.of(document, table)
        pictures = draw_pictures(places.results, chosen, choices, library, owner)
    for trouble in library.troubles:
        stderr.print(f"warning: {trouble}", markup=False, highlight=False, soft_wrap=True)
    if not dry_run:
        words = ["eigenshot", "reproduce", table, "--results-only", *choices.options]
        # What happened just now is no part of what was reached.
        lasting = compare(chosen, choices, plan, library)
        _write(document, as_markdown(lasting, shlex.join(words), pictures))
        reporter.note(f"written to {document}")
    if session.interrupted:
        raise typer.Exit(_INTERRUPTED)
    if session.failed:
        raise typer.Exit(1)


def _separated(option: str, texts: list[str] | None) -> list[str]:
    """``["a,b", "c"]`` as a, b and c, each once; nothing where ``option`` was not given."""
    words = [word for text in texts or [] for word in re.split(r"[,\s]+", text) if word]
    if texts and not words:  # as of a variable that is not set
        raise UserError(f"{option} is empty; leave it out for the default")
    return list(dict.fromkeys(words))


def _numbers(texts: list[str] | None) -> tuple[int, ...]:
    words = _separated("--seeds", texts)
    wrong = [word for word in words if not (word.isascii() and word.isdigit())]
    if wrong:
        raise UserError(f"--seeds takes whole numbers from 0 on, as 0,1,2; found '{wrong[0]}'")
    return tuple(int(word) for word in words)


def _prepare(places: Places, *, dry_run: bool, results_only: bool) -> None:
    """Make the folder of results; refuse before hours are spent where something cannot be kept."""
    if results_only and not places.results.is_dir():
        raise UserError(f"there is no folder '{places.results}' to make the table from")
    needed = {"--results": places.results} if results_only else {}
    needed = needed or {"--results": places.results, "--runs": places.runs}
    for option, folder in needed.items():
        there = os.path.lexists(folder)
        if dry_run and (not there or folder.is_dir()):
            continue  # nothing will be written
        if trouble := why_no_folder(folder):
            raise UserError(f"{option}: {trouble}; choose another")
    if not dry_run:
        places.results.mkdir(parents=True, exist_ok=True)


def _why_idle(plan: Plan, places: Places) -> str:
    if not plan.runs:
        return "there is nothing to run: the notes of the table say why these rows cannot be"
    return (
        f"nothing was run: all results are in '{places.results}'; another --results makes new ones"
    )


def _write(file: Path, text: str) -> None:
    try:
        write_text(file, text)
    except OSError as error:
        raise UserError(f"cannot write '{file}': {error.strerror}") from error


def _run(
    plan: Plan,
    places: Places,
    device: str,
    budget: float | None,
    side_by_side: int,
    debug: bool,
    console: Console,
) -> Session:
    from eigenshot.hardware import choose_device
    from eigenshot.reporter import ConsoleReporter
    from eigenshot.reproduction.session import run_all

    chosen = choose_device(device)
    if side_by_side > 1:
        from eigenshot.reproduction.side_by_side import run_side_by_side, shares_a_gpu_well

        if not shares_a_gpu_well(chosen):
            ConsoleReporter(console).note(
                "runs on one GPU take turns and gain little, unless NVIDIA's multi-process service "
                "is there: nvidia-cuda-mps-control -d starts it"
            )
        return run_side_by_side(
            plan.runs, places, count=side_by_side, device=device, minutes=budget, debug=debug
        )
    return run_all(
        plan.runs,
        places,
        device=device,
        minutes=budget,
        reporter=lambda run: ConsoleReporter(console, run.config.training.epochs),
        debug=debug,
    )


def _described(
    plan: Plan,
    places: Places,
    device: str,
    budget: float | None,
    beside: int,
    session: Session,
) -> str:
    """The plan, a line a run; why one cannot be run here goes to the remarks of ``session``."""
    from eigenshot.reporter import duration
    from eigenshot.reproduction.estimate import Estimator
    from eigenshot.reproduction.library import Library
    from eigenshot.reproduction.results import result_file
    from eigenshot.reproduction.session import obstacle, result_of

    library = Library(places.results)
    estimator = Estimator(places.results, device, beside)
    left = float("inf") if budget is None else 60 * budget
    trained: set[Path] = set()  # by rows above, when it is this one's turn

    def state(run: PlannedRun) -> str:
        nonlocal left
        if result := result_of(run, library):
            return f"done, in {result_file(places.results, result.benchmark, result.name)}"
        if reason := obstacle(run, places):
            session.remark(run, reason)
            return "cannot be run here, see the notes of the table"
        folder = places.folder(run)
        shared = folder in trained
        shorter = None if shared else places.shorter(run, device)
        begun = "goes on in" if folder.exists() else "runs in"
        begun = f"goes on from {shorter.folder.path} in" if shorter else begun
        begun = "measures what a row above trains in" if shared else begun
        needed = 0.0 if shared else estimator.known(run, folder, shorter)
        if needed is None:
            trained.add(folder)
            return f"{begun} {folder}, its time is measured first"
        measuring = estimator.evaluation(run)
        if not needed and measuring is None:
            return f"{begun} {folder}, how long that takes is not known here"
        needed += measuring or 0.0
        if needed > left:
            return f"does not fit into the budget, about {duration(needed)}"
        left -= needed
        trained.add(folder)
        return f"{begun} {folder}, about {duration(needed)}"

    lines = [
        f"  {run.row.name}, {run.part.title}, seed {run.seed}: {state(run)}" for run in plan.runs
    ]
    return "\n".join(["Plan, most valuable first:", *lines]) if lines else "Nothing to run."
